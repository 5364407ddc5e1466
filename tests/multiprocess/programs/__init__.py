"""Programs that users of DistributedDataParallel write, run side by side with it."""
