"""NCCL: which algorithm its all-reduce takes by size, and what that is worth on other clusters."""
