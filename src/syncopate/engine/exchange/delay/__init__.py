"""Delay: ranks train on weights of their own between pulls or averages of the global ones.

SSD-SGD: ``stages`` is when weights become a rank's own, and ``periodic_pull`` what every such
exchange does then; ``shards`` is for ranks that own the global weights, ``serving/delayed`` for
servers. The work behind a step is in ``behind_steps``, and ``deferred`` is its end. ``local`` holds
a rank's own weights, ``rules`` update them, and ``iterations`` counts steps.

Local SGD is ``averaged``.
"""
