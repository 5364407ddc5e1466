"""Parameter server: servers keep the weights, workers push gradients and pull weights.

The messages and their order are :mod:`syncopate.protocol`'s; here are sockets, tensors, disks and
threads. Nothing is imported along with the package, so that a scheduler starts without torch.

===============  ===================================================================================
file             what it does
===============  ===================================================================================
``job``          where the scheduler is, how many take part: the environment's DMLC variables
``wire/``        how messages travel: sockets, keys, queues, and what is noted and counted of them
``membership``   heartbeats, in a thread and on a connection of their own
``node``         what server and worker share: wire, membership, a loop
``durable``      files that outlive a loss of power; a scheduler's run on disk
``pieces``       the bytes of tensors as slices and bundles carry them
``tensors``      tensors as frames, frames as tensors
``optimizers``   SGD, Adam and Adagrad on a slice
``rows/``        tables that servers keep by row
``shard``        the slices of one server: weights, optimizer states, gradients that wait
``state``        a server's state on disk
``server``       one server
``scheduler``    the scheduler
``driver``       which thread drives a worker's sockets; handles of what it submitted
``session``      a worker in its job, and what is under way to and from servers
``worker``       the key-value store that a training script uses
``status``       how a job stands, asked of its scheduler
``launch``       all of them on this machine
===============  ===================================================================================
"""
