"""Logs: what other tools measured of a network, as a cluster.

A way that data goes: a file's text (``text``) is read by the module of the tool that wrote it
(``nccl_tests``, ``perftest``, ``iperf``) into what it measured (``measured``), and all that was
measured becomes one cluster (``assemble``). ``read`` is the door. Nothing here needs torch.
"""
