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
``pieces``       the bytes of tensors as slices and bundles carry them
``tensors``      tensors as frames, frames as tensors
``storage/``     what a server keeps, in memory and on disk, and how it updates that
``rows/``        tables that servers keep by row
``server``       one server
``scheduler``    the scheduler
``driver``       which thread drives a worker's sockets; handles of what it submitted
``session``      a worker in its job, and what is under way to and from servers
``worker``       the key-value store that a training script uses
``status``       how a job stands, asked of its scheduler
``launch``       all of them on this machine
===============  ===================================================================================
"""
