"""Engine: attaches to a module and its optimizer and executes a plan during backward.

:func:`~syncopate.engine.distribute.distribute` is the way in, and for programs that stay
with DistributedDataParallel :func:`~syncopate.engine.ddp.wrap.ddp`.
"""
