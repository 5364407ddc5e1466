"""Identity: what torch asks of a process group besides collectives: names, store, numbers."""

from __future__ import annotations

from typing import Any

import torch

from syncopate.c10d.torch_compat import ProcessGroup
from syncopate.ranks import BACKEND


class Identity(ProcessGroup):  # type: ignore[misc]
    """A process group of Python's, as torch knows it.

    torch's own keeps these in backends of C++, of which one of Python's has none.

    Args:
        store: by which the ranks meet.
        rank: this rank within the group.
        size: number of ranks.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)  # torch's other constructor makes no class of Python's
        self._store = store
        self._name = self._text = ""
        self._sequence = 0

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the backend's name."""
        return BACKEND

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return what torch calls the group."""
        return self._name

    @property
    def group_name(self) -> str:
        """What torch calls the group; the same on all its ranks."""
        return self._name

    def _set_group_desc(self, text: str) -> None:
        self._text = text

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """Return what the group is for, in words."""
        return self._text

    @property
    def group_desc(self) -> str:
        """What the group is for, in words."""
        return self._text

    def get_group_store(self) -> Any:
        """Return the store by which the group's ranks met."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence
