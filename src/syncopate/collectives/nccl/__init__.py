"""NCCL: collectives on CUDA devices: batches of messages, stages on subgroups, streams."""
