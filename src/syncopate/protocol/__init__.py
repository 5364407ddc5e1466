"""Protocol: the parameter server as state machines: a message in, actions out.

Nothing here opens a socket, reads a clock or holds a tensor: time comes in as an argument, payloads
are named by their key and sequence number. Server, worker, scheduler, tests and simulator share it.

===============  ===================================================================================
file             what it decides
===============  ===================================================================================
``messages``     what travels
``codec``        messages as bytes, and which bytes are refused
``piece``        a slice: what is pushed, updated and pulled as one
``bundle``       small slices that travel as one, as long as they can
``table``        tables of rows: what they begin with, and which server keeps a share
``layout``       how tensors are cut into slices, and which server keeps each
``rules``        how servers update: mode, bound on staleness, optimizer, what a lost worker means
``declaring``    what a server shall keep, said in parts
``limits``       times, sizes and windows
``narrow``       gradients in fewer bits than they have
``clipping``     how servers agree on the norm of a step's gradient
``actions``      what a machine asks of its caller
``membership/``  who takes part: how processes join, are waited for, are lost, and part
``slice``        one slice at its server: which pushes count, when to update, which pulls to answer
``server``       one server: sessions, slices, refusals
``flow``         one slice at a worker: its pushes and pulls under way
``worker``       one worker: sequence numbers, windows, what to send again
===============  ===================================================================================
"""
