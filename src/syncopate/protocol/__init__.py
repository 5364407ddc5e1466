"""Protocol: the parameter server as state machines: a message in, actions out.

Nothing here opens a socket, reads a clock or holds a tensor: time comes in as an argument, payloads
are named by their key and sequence number. Server, worker, scheduler, tests and simulator share it.

===============  ===================================================================================
file             what it decides
===============  ===================================================================================
``messages``     what travels
``scalars``      the numbers and names in it
``codec``        messages as bytes, and which bytes are refused
``placement/``   as what tensors travel, and which server keeps which part
``table``        tables of rows: what they begin with, and which server keeps a share
``rules``        how servers update: mode, bound on staleness, optimizer, what a lost worker means
``limits``       times, sizes and windows
``gradients/``   in fewer bits on the wire, and clipped by the norm of a step
``actions``      what a machine asks of its caller
``membership/``  who takes part: how processes join, are waited for, are lost, and part
``slice``        one slice at its server: which pushes count, when to update, which pulls to answer
``server``       one server: sessions, slices, refusals
``flow``         one slice at a worker: its pushes and pulls under way, when an answer is late
``worker``       one worker: sequence numbers, windows, what to send again
``reasons``      the sentences about what ends a job
===============  ===================================================================================
"""
