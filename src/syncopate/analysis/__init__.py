"""Analysis: what a timeline or a trace says, whether it was measured or simulated.

Each module has its own names, and this one none: the failure detector of a training judges links by
one of them, and a training that begins has no time to load the others.
"""
