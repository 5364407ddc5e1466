"""Self-planning: from the first steps of a training to the plan that stays.

A run begins in ``start``, with a plan that was kept or with DDP's own buckets.
:mod:`~syncopate.engine.selfplan.phases` tells what follows in the second case; the other modules
are its parts: what the user asks (``wishes``), DDP's buckets (``ddp_buckets``), a step at a time
(``stepwise``), network probes in slices of time (``time_slices``), plans that compete
(``contest``), what that cost (``payback``), plans that were kept (``cache``), and the log
(``log_lines``). What takes long to compute runs in a process of its own (``background/``).
Afterwards the plan is watched, and replaced where it has gone bad (``replanning/``).
"""
