"""Causes: why an iteration takes as long as it does, and what it would take without each cause.

``explanation`` is what is said; ``trial`` removes causes alone, together and all but one;
``counterfactuals`` is what an iteration would be like without one.
"""
