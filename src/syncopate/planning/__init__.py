"""Planning: from a workload and a cluster to a plan.

One file per policy, one table of policies (``registry.py``), and the planner that turns a partition
into a plan with its prediction (``planner.py``).
"""

from __future__ import annotations

from syncopate.planning.planner import compare, make_plan, predict
from syncopate.planning.registry import POLICIES, Policy

__all__ = ["POLICIES", "Policy", "compare", "make_plan", "predict"]
