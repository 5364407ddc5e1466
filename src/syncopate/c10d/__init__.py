"""c10d: torch.distributed's collectives over our links: a backend, and FSDP2's collectives.

c10d is what torch calls the part of it that moves tensors between processes.

=================  =================================================================================
file               what it does
=================  =================================================================================
``register``       makes the backend known to torch, under the name ``syncopate``
``group``          a process group of that backend: what torch calls
``identity``       what else torch asks of a process group
``collectives``    which schedules and messages a call of torch's becomes
``rows``           tensors as one row of elements, and back
``reductions``     torch's reductions: what is done before, between and after
``sparse``         sums of sparse tensors
``works``          what torch waits for, and the errors that it raises
``messages``       tensors from one rank to another
``fsdp2``          all-gather and reduce-scatter for ``fully_shard``, with any backend
``torch_compat``   what of torch's inside all of them use
=================  =================================================================================
"""
