"""Delay: training on weights of one's own while the global ones are away: SSD-SGD.

The exchange itself is ``delayed``; ``local`` is what a rank keeps for it, ``rules`` how its own
weights are updated, and ``loading`` how it learns that somebody loaded others.
"""
