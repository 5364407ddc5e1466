"""Wire: how messages travel between the processes of a job.

=============  =====================================================================================
file           what it does
=============  =====================================================================================
``addresses``  hosts and ports, as sockets and ZeroMQ write them
``security``   the job's key, CURVE keys derived from it, and which connections are let in
``unadmitted`` what connections may send before their callers are known, and are cut off
``outbox``     what waits to be sent to one peer, by priority, so many bytes at a time
``faults``     for tests: messages dropped, doubled or late
``tap``        one process's messages as rows of the trace
``sockets``    the ZeroMQ sockets of one process
=============  =====================================================================================
"""
