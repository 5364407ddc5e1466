"""The artefacts of sweeps: settings in words, prices from files."""

from __future__ import annotations

import pytest

from syncopate.artifacts.results.whatif import AXES, Prices, Setting
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.units import parse_link

SETTING = Setting(
    nodes=8,
    gpus_per_node=4,
    bandwidth_bytes_per_s=parse_link("25g"),
    latency_s=20e-6,
    levels=(("rack.bandwidth", 5e9), ("device.latency", 5e-6)),
)


def test_every_axis_has_its_words():
    assert [SETTING.said(axis) for axis in AXES if axis != "levels"] == [
        "8 nodes",
        "4 GPUs a node",
        "25 Gbit/s",
        "20.0 us latency",
        "1:1 oversubscribed",
        "1x the compute speed",
        "batch None",
        "best exchange",
        "best buckets",
        "cheapest algorithm",
        "own type",
        "synchronous",
        "servers as hosts",
        "no local SGD",
    ]
    assert SETTING.said("rack.bandwidth") == "rack 40.00 Gbit/s"
    assert SETTING.said("device.latency") == "device 5.0 us"
    assert SETTING.ranks == 32


def test_an_axis_that_is_not_there_has_no_words():
    with pytest.raises(KeyError):
        SETTING.said("spine.bandwidth")


def test_every_axis_is_a_field_of_a_setting():
    assert set(AXES.values()) | {"profile"} == set(Setting.__struct_fields__)


def test_prices_are_read_from_a_file(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(
        'epoch_samples = 1281167\ngpu_hour = 2\ncurrency = "EUR"\n[link_hour]\n25g = 0.05\n'
    )
    found = Prices.load(path)
    assert (found.gpu_hour, found.link_hour, found.currency) == (2.0, {"25g": 0.05}, "EUR")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("epoch_samples = 1\ngpu = 2", "prices.toml.*gpu"),
        ("gpu_hour = 1.0", "prices.toml.*epoch_samples"),
        ("epoch_samples = 1\ngpu_hour = -1", "finite number >= 0"),
        ("a = " + "[" * 100_000, "prices.toml: arrays or objects stand inside each other deeper"),
        ("epoch_samples = ", "prices.toml: not valid TOML"),
    ],
)
def test_damaged_prices_are_refused(tmp_path, text, reason):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises((ArtifactError, InvalidValueError), match=reason):
        Prices.load(path)


def test_missing_prices_are_refused(tmp_path):
    with pytest.raises(ArtifactError, match="cannot read this file of prices"):
        Prices.load(tmp_path / "none.toml")
    with pytest.raises(InvalidValueError, match="epoch_samples is 0"):
        Prices(epoch_samples=0)
