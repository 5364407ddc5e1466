"""Costs: what a collective takes on a cluster.

``model/`` has the prices of schedules, measured curves and the envelopes of both, what collectives
cost in training, and the physical bound that no plan can beat; ``decide/`` takes the algorithm and
its options by them; ``papers/`` has the closed forms that the papers print; ``nccl/`` has what
NCCL chooses and takes; ``validated.py`` how far predictions were off.
"""
