"""Membership: how processes join a job, are waited for, are lost, and part.

===============  ===================================================================================
file             what it decides
===============  ===================================================================================
``member``       a server's or worker's side: join, heartbeats, a silent scheduler
``members``      what a scheduler knows of each
``admission``    which processes a scheduler lets in, and in whose place
``scheduler``    the scheduler's side: ranks, addresses, lost nodes, when the job is over
``parting``      who has not heard yet that the job is over
``launch``       how often a worker's launcher has started it, and whether it does so again
``incarnation``  how often a run went on after all its workers were gone, and from which step
``successor``    the scheduler's side of that: who takes part, and the step
``places``       processes that come while the job runs, and whose places they take
``awake``        a process's own pause is no silence of the others
===============  ===================================================================================
"""
