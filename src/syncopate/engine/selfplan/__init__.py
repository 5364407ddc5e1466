"""Self-planning: from the first steps of a training to the plan that stays.

:mod:`~syncopate.engine.selfplan.course` tells the whole story; the other modules are its parts:
DDP's own buckets (``safe``), network probes in portions (``portions``), held steps that measure
(``sampling``), what overlap costs (``interference``), plans that compete (``contest``), what that
cost (``payback``), plans that were kept (``cache``), and what is said of it all (``words``).
"""

from syncopate.engine.selfplan.contest import PLANNED, Asked
from syncopate.engine.selfplan.course import SelfPlanner, Wishes
from syncopate.engine.selfplan.safe import first_plan

__all__ = ["PLANNED", "Asked", "SelfPlanner", "Wishes", "first_plan"]
