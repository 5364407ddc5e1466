"""Self-planning: from the first steps of a training to the plan that stays.

A run begins in ``start``, with a plan that was kept or with DDP's own buckets.
:mod:`~syncopate.engine.selfplan.phases` tells what follows in the second case; the other modules
are its parts: what the user asks (``wishes``), DDP's buckets (``ddp_buckets``), a step at a time
(``stepwise``), network probes in slices of time (``time_slices``), plans that compete
(``contest``), what that cost (``payback``), plans that were kept (``cache``), and the log
(``log_lines``). Held steps that measure (``sampling``) and the plans that compete (``proposals``)
are made in a process of its own (``planner_process``).

Afterwards each rank watches its steps (``watch``). Where they have become slower by the rule of
``slowdown``, all ranks plan ``again``.
"""
