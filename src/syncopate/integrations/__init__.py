"""Classes with which Lightning, Transformers and Accelerate train by :func:`syncopate.distribute`.

Each framework wraps a model in DistributedDataParallel; each class here distributes it instead. A
framework is loaded when its class is first asked for, and a sentence says so where it is missing.

Example:
    >>> from syncopate.integrations import SyncopateStrategy  # doctest: +SKIP
    >>> trainer = pl.Trainer(strategy=SyncopateStrategy(), devices=2)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from syncopate.errors import MissingPackageError

if TYPE_CHECKING:
    from syncopate.integrations.accelerate import SyncopateAccelerator
    from syncopate.integrations.lightning import SyncopateStrategy
    from syncopate.integrations.transformers import SyncopateTrainer

__all__ = ["SyncopateAccelerator", "SyncopateStrategy", "SyncopateTrainer"]

_MODULES = {
    "SyncopateAccelerator": "accelerate",
    "SyncopateStrategy": "lightning",
    "SyncopateTrainer": "transformers",
}
"""Class -> its module here, which is called as the framework is."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _MODULES.values():
            raise
        raise MissingPackageError(name, package) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
