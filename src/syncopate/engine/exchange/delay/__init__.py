"""Delay: training on weights of one's own while the global ones are away: SSD-SGD.

What every such exchange does is in ``late``; ``delayed`` is the one whose ranks own the global
weights, and ``served`` the one whose servers do. ``behind`` is how pulls let pushes pass, and
``deferred`` what ends behind a step; ``local`` is what a rank keeps for it, ``rules`` how its own
weights are updated, and ``loading`` how it learns that somebody loaded others.
"""
