"""Membership: how processes join a job, are waited for, are lost, and part.

=============  =====================================================================================
file           what it decides
=============  =====================================================================================
``member``     a server's or worker's side: join, heartbeats, a silent scheduler
``members``    what a scheduler knows of each
``scheduler``  the scheduler's side: ranks, addresses, lost nodes, when the job is over
``awake``      a process's own pause is no silence of the others
=============  =====================================================================================
"""
