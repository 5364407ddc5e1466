"""Profiling: from a model to its workload."""
