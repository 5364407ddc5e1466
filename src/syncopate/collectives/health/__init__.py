"""Health: why did my job die, and why is it slow? Start here.

What the user sees, and what to do about it, is in ``docs/failures.md``. This is how it comes about.

**Noticed.** A collective that fails raises where it runs: a connection of the mesh closed, Gloo or
NCCL raised, or a time limit passed. That reaches only the neighbours of the rank that was lost. So
every rank also holds an idle connection to rank 0, on which the kernels of their hosts probe each
other (:mod:`.keepalive`). It closes when a process dies, and fails when a host goes silent. Rank 0
tells the others.

**Announced.** A rank that fails closes its connections, so that its neighbours end too, and theirs.
Before that it leaves a notice in the group's store: what it was doing, whom it waited for, and how
it ended (:mod:`.notices`). A rank that is found closed and has left a notice is not to blame.

**Ended.** A rank that waits for some other rank than the lost one would wait on. Each communicator
has a thread (:mod:`.monitor`) that looks twice a second: has a collective of this rank taken long,
and does the keep-alive know of a loss, or has a rank left a notice? Then it breaks the
communicator from this side: it closes the connections of Gloo and of the mesh, and what waits for
them raises.

**Named.** :func:`.blame.blame` follows the notices from rank to rank, to those that left none
because they are dead or never came. The first rank to come to a verdict leaves it in the store, and
all others take it, so that all say the same. :class:`.detector.FailureDetector` puts it together:
every collective runs inside of it, and it turns what was raised into one
:class:`~syncopate.errors.CollectiveError`, which every later call raises again.

=================  =================================================================================
file               what it does
=================  =================================================================================
``detector``       supervises every collective; announces, ends and names a failure
``monitor``        the thread that looks while collectives run; warns of those that take long
``keepalive``      which ranks are alive and which hosts answer, by connections to rank 0
``notices``        what ranks tell each other through the store, and the verdict they agree on
``blame``          from notices to the ranks held responsible; the sentences of the errors
``store_calls``    calls to a store that may never answer
``slow_links``     which links are slow, from what the kernels counted
=================  =================================================================================

How the waits themselves end is elsewhere: in :mod:`syncopate.collectives.mesh.links` for the mesh,
in :mod:`syncopate.collectives.backend.waits` for Gloo.
"""
