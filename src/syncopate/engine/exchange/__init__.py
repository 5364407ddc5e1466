"""Exchange: what is done with gradients that are ready, who updates, how weights come back.

One file for each way of training (``plan.EXCHANGES``), behind the interface of ``base.py``. The
other side, which gradient is ready and which backward runs, is :mod:`syncopate.engine.readiness`;
neither knows the other's insides.
"""
