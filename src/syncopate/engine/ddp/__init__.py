"""DDP: plans inside torch's own DistributedDataParallel.

``wrap`` is what users call: it checks plan and model, and makes the DDP. ``buckets`` says which
limits give DDP the buckets of a plan, and which messages carry the buckets that it has; ``hook``
carries them; ``group`` is what DDP does all else over.
"""
