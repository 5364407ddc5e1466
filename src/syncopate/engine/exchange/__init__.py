"""Exchange: what is done with gradients that are ready, who updates, how weights come back.

A way of training is a row of parts (``kinds.py``), each a small class that is made from the layout
of the plan's buckets in memory (``layout.py``) and knows no other part:

| part | says | where |
| --- | --- | --- |
| owner | which rank owns what of a bucket | ``shares.py`` |
| push | how gradients come to their owners | ``push/``; ``serving/`` |
| notes | what the ranks say besides | ``notes.py`` |
| gradients | what ``parameter.grad`` is then | ``proxies/`` |
| update | which rank applies the optimizer, and when | ``update/`` |
| pull | how weights, or averages, come back | ``pull/`` |
| buffers | when ranks agree on the model's buffers | ``model_buffers.py`` |
| local | what weights are a rank's own | ``delay/`` |

``parts.py`` has the calls that each answers, and ``base.py`` calls them for the engine, in one
order for all rows. What two parts both need is an object that the layout makes once and hands to
both, such as the weights in flat memory (``flat_weights.py``).

To add a way of training: write the part that is new, and a row with it.

The other side, which gradient is ready and which backward runs, is
:mod:`syncopate.engine.readiness`; neither knows the other's insides.
"""
