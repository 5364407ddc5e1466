"""Unmodified: a training script as users of DistributedDataParallel have it."""
