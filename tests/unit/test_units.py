"""Units: what is read and how it is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate import units
from syncopate.errors import InvalidValueError, UnknownNameError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("512", 512),
        ("96 B", 96),
        ("4k", 4096),
        ("4KB", 4000),
        ("4 KiB", 4096),
        ("25MB", 25_000_000),
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("1e3kb", 1_000_000),
        (" .5M ", 1 << 19),
    ],
)
def test_sizes_are_read(text, nbytes):
    assert units.parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-1", "4 TB", "4 K iB", "1gbit", "nan", "1,000", "1e400", "1e308k"],
)
def test_other_sizes_are_refused_with_an_example(text):
    with pytest.raises(InvalidValueError, match=r"size is .* a number and one of .* 64MiB"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1gbit", 125e6), ("100 Mbit", 12.5e6), ("8kbit", 1e3), ("16bit", 2.0), ("9.4Gbit", 1.175e9)],
)
def test_rates_are_read(text, rate):
    assert units.parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["1", "1gb", "fast", "1gbit/s", "1e400gbit"])
def test_other_rates_are_refused(text):
    with pytest.raises(InvalidValueError, match="such as 1gbit"):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (96, "96 B"),
        (1023, "1023 B"),
        (4096, "4.0 KiB"),
        (25 << 20, "25.0 MiB"),
        (3 << 29, "1.5 GiB"),
    ],
)
def test_sizes_are_written(nbytes, text):
    assert units.format_bytes(nbytes) == text


@given(st.integers(0, 2**50))
def test_a_written_size_reads_back_within_its_rounding(nbytes):
    assert units.parse_bytes(units.format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.06)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 us"),
        (83.1e-6, "83.1 us"),
        (4.2e-3, "4.20 ms"),
        (1.5, "1.50 s"),
        (-0.002, "-2.00 ms"),
    ],
)
def test_durations_are_written(seconds, text):
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1.2075e9, "9.66 Gbit/s"),
        (125e3, "1.00 Mbit/s"),
        (125, "1.00 kbit/s"),
        (2, "16 bit/s"),
    ],
)
def test_rates_are_written(rate, text):
    assert units.format_rate(rate) == text


def test_dtypes():
    assert units.dtype_bytes("bfloat16") == 2
    with pytest.raises(UnknownNameError, match="unknown dtype 'float'; known: float64, float32"):
        units.dtype_bytes("float")


def test_every_dtype_has_torchs_size():
    import torch  # noqa: PLC0415

    for name, nbytes in units.DTYPE_BYTES.items():
        assert torch.empty((), dtype=getattr(torch, name)).element_size() == nbytes


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10g", 1.175e9), ("25GbE", 2.9375e9), ("100m", 11.75e6), ("9.4gbit", 1.175e9)],
)
def test_links_are_read_as_sold_or_as_they_arrive(text, rate):
    assert units.parse_link(text) == pytest.approx(rate)


def test_links_are_written_as_sold_where_they_are():
    assert (units.sold_as(1.175e9), units.sold_as(1.0e9)) == ("10g", "")
    sold = 2.5e9 / 8 * units.GOODPUT
    assert (units.format_link(sold), units.format_link(1e9)) == ("2.5 Gbit/s", "8.00 Gbit/s")
    with pytest.raises(InvalidValueError, match="as sold, such as 25g"):
        units.parse_link("fast")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1.5 min", 90), ("6h", 21_600), ("2d", 172_800), ("5y", 157_788_000)],
)
def test_durations_are_read(text, seconds):
    assert units.parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "90", "soon", "5 weeks", "-1s"])
def test_other_durations_are_refused(text):
    with pytest.raises(InvalidValueError, match="duration is"):
        units.parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.02, "20.00 ms"),
        (119.0, "119.00 s"),
        (3000.0, "50.0 min"),
        (9000.0, "2.5 h"),
        (259_200.0, "3.0 d"),
    ],
)
def test_long_durations_are_written(seconds, text):
    assert units.format_duration(seconds) == text
