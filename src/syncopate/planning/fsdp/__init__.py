"""fsdp: plans of units, whose weights lie in shards and are gathered to be used.

``question``  what can be chosen: blocks to merge into units, how far ahead, what stays gathered
``planner``   the choice
"""
