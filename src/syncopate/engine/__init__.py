"""Engine: attaches to a module and its optimizer and executes a plan during backward.

:func:`~syncopate.engine.distribute.distribute` is the way in.
"""

from syncopate.engine.distribute import distribute
from syncopate.engine.engine import Engine

__all__ = ["Engine", "distribute"]
