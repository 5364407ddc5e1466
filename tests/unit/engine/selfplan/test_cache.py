"""Cache: where plans are kept, for what they are good, and what a bad file does."""

from __future__ import annotations

import logging
import pwd
from pathlib import Path

import msgspec
import pytest

from syncopate.engine.selfplan import cache
from syncopate.engine.selfplan.contest import Contender
from tests.unit.engine.selfplan.test_contest import CLUSTER, DDP, WORKLOAD

FACTS = {"model": "My Net/2", "ranks": "4", "hosts": "a a b b"}


def settled(**changes: str) -> cache.Settled:
    return cache.Settled(
        facts=FACTS | changes,
        plan=DDP,
        name="DDP's buckets",
        step_s=1.0,
        ddp_step_s=1.0,
        workload=WORKLOAD,
        cluster=CLUSTER,
        date="2026-01-01T00:00:00+00:00",
        contest=(Contender("a", DDP, [1.0, 2.0]),),
    )


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "plans"))


def test_what_is_written_is_read_for_the_same_facts_alone(tmp_path: Path) -> None:
    assert cache.read(FACTS) is None
    path = cache.write(settled())
    assert path is not None
    assert path.parent == tmp_path / "plans"
    assert path.name.startswith("My-Net-2-")
    assert cache.read(dict(reversed(FACTS.items()))) == settled()
    for name in FACTS:
        assert cache.read(FACTS | {name: "other"}) is None


def test_another_training_has_another_file() -> None:
    assert cache.path_of(FACTS) != cache.path_of(FACTS | {"torch": "3"})


def test_a_file_that_was_copied_over_another_is_not_believed() -> None:
    mine, theirs = cache.path_of(FACTS), cache.write(settled(ranks="8"))
    assert mine is not None
    assert theirs is not None
    mine.write_bytes(theirs.read_bytes())
    assert cache.read(FACTS) is None


def test_a_damaged_file_is_named_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    path = cache.write(settled())
    assert path is not None
    path.write_text("{")
    with caplog.at_level(logging.WARNING, "syncopate"):
        assert cache.read(FACTS) is None
    assert str(path) in caplog.text


def test_a_folder_that_cannot_be_written_costs_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "inside"))
    with caplog.at_level(logging.WARNING, "syncopate"):
        assert cache.write(settled()) is None
    assert "not kept" in caplog.text


def test_a_folder_that_cannot_be_looked_into_costs_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / ("long" * 100)))
    with caplog.at_level(logging.WARNING, "syncopate"):
        assert cache.read(FACTS) is None
        assert cache.write(settled()) is None
    assert "the kept plan is not used" in caplog.text


def test_who_has_no_home_keeps_no_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in (cache.VARIABLE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level(logging.WARNING, "syncopate"):
        assert cache.folder() is None
        assert cache.read(FACTS) is None
        assert cache.write(settled()) is None
    assert "no plan is kept in ~/.cache/syncopate" in caplog.text


@pytest.mark.parametrize("word", ["off", "OFF", "0", ""])
def test_it_can_be_switched_off(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, word)
    assert cache.folder() is None
    assert cache.write(settled()) is None
    assert cache.read(FACTS) is None


def test_without_a_word_it_is_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "syncopate"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache" / "syncopate"


def test_what_is_kept_for_like_trainings_is_found_newest_first() -> None:
    old, new = settled(exchange="allreduce"), settled(exchange="")
    new = msgspec.structs.replace(new, date="2026-02-01T00:00:00+00:00")
    for each in (old, new, settled(ranks="8"), settled(model="My Net/2b")):
        cache.write(each)
    assert list(cache.find(FACTS)) == [new, old]
    assert list(cache.find(FACTS | {"exchange": "allreduce"})) == [old]
    assert list(cache.find({"model": "none"})) == []


def test_nothing_is_found_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert list(cache.find(FACTS)) == []
