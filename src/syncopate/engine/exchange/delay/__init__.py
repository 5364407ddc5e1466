"""Delay: training on weights of one's own, while the global ones are away or of no account.

SSD-SGD: ``stages`` is when weights become a rank's own, and ``late`` what every such exchange does
then; ``shards`` is for ranks that own the global weights (``serving/delayed`` for servers). What
comes behind a step is in ``behind_steps``, and ``deferred`` is its end. ``local`` is what a rank
keeps, ``rules`` how its own weights are updated, ``loading`` how it learns that the script loaded
others, and ``iterations`` how steps are counted.

Local SGD is ``averaged``.
"""
