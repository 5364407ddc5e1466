"""fsdp: iterations whose weights lie in shards, as ``fully_shard`` trains them.

``units``     an iteration as pieces and collectives
``traffic``   the messages of a plan, priced, on all ranks or on groups of them
``predict``   what a plan is expected to cost
"""
