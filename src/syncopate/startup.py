"""Startup: what is to happen as soon as a process imports torch.

``syncopate.pth``, which is installed beside the package, calls :func:`watch` when the interpreter
starts, and does nothing where ``SYNCOPATE_TRACE`` is not set. The package itself has its backend
made known to torch. A process that never imports torch is left alone: until then there is one more
finder of modules, which knows one name. It uses nothing but the standard library, because it may
run before anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_AWAITED = "torch"


def watch() -> None:
    """Record what this process trains, from when it imports torch; once, however often called."""
    if _record not in _calls:
        after_torch(_record)


def after_torch(call: Callable[[], None]) -> None:
    """Have ``call`` called when torch has been imported, unless that is so already."""
    if _AWAITED in sys.modules:
        return
    _calls.append(call)
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


_calls: list[Callable[[], None]] = []
"""What awaits torch."""


def _record() -> None:
    try:
        from syncopate.tracing.foreign.recording.automatic import begin  # noqa: PLC0415

        begin()
    except Exception as error:  # the training matters more
        print(f"syncopate: nothing is recorded: {error}", file=sys.stderr)


class _Finder(MetaPathFinder):
    """Finds torch as the others do, and has it loaded by a loader that tells."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load torch; None for anything else."""
        if name != _AWAITED:
            return None
        others = (one for one in sys.meta_path if one is not self)
        found = (one.find_spec(name, path, target) for one in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._loaded)
        return spec

    def _loaded(self) -> None:
        sys.meta_path.remove(self)
        while _calls:
            _calls.pop(0)()


class _Loader(Loader):
    """Loads as another loader does, and then says so."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the other loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, which has the other loader from here on."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()
