"""Notices and stores for tests of the failure detector."""

from __future__ import annotations

from syncopate.collectives.health.blame import Call, Kind, Notice
from syncopate.collectives.health.notices import Notices

CALL = Call("all_reduce (ring)", 0, 3, 8, "float32")


def notice(kind: Kind, *waiting_on: int, waited_s: float = 5.0, call: Call = CALL) -> Notice:
    return Notice(call, kind, waiting_on, waited_s)


class FakeStore:
    """A store whose content the test decides."""

    def __init__(self, notices: dict[int, Notice] | None = None) -> None:
        self.values: dict[str, str] = {}
        for rank, found in (notices or {}).items():
            Notices(self, rank, 8).put(found)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + amount)
        return int(self.values[key])

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = value
        return self.values[key].encode()
