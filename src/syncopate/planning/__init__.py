"""Planning: from a workload and a cluster to a plan.

One file per policy, one table of policies (``registry.py``), and the planner that turns a partition
into a plan with its prediction (``planner.py``).
"""

from __future__ import annotations

from syncopate.planning.planner import compare, make_plan
from syncopate.planning.question import predict
from syncopate.planning.registry import POLICIES, Policy, filled_to

__all__ = ["POLICIES", "Policy", "compare", "filled_to", "make_plan", "predict"]
