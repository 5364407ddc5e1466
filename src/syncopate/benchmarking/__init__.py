"""Bench: one collective, several contenders, by the conventions of nccl-tests."""
