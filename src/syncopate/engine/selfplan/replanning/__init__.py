"""Replanning: a plan that has gone bad is noticed in the run's own steps, and replaced.

Each rank watches its steps (``watch``). Where they have become slower by the rule of ``slowdown``
on most ranks, all ranks plan ``again``.
"""
