"""BlueConnect's rows: one fitted step for three overheads, Fig. 3, and what contradicts it."""

from __future__ import annotations

import pytest

from figures import blueconnect as blue

ROWS = {row.what: row for row in blue.paper().figures}


def test_rings_overhead_follows_from_its_45_percent() -> None:
    ring_s = blue.printed_s()[blue.RING]
    assert blue.images_per_s(192, 31e-3) / blue.images_per_s(192, ring_s) == pytest.approx(1.45)
    assert ring_s == pytest.approx(118.3e-3, abs=1e-4)


def test_one_step_gives_all_three_overheads_within_five_percent() -> None:
    theirs, step_s = blue.printed_s(), blue.fitted_step_s()

    def worst(seconds: float) -> float:
        return max(abs(blue.overhead_s(n, 192, seconds) / theirs[n] - 1) for n in theirs)

    assert step_s == pytest.approx(268e-6, abs=2e-6)
    assert worst(step_s) < 0.05
    assert worst(step_s) <= min(worst(step_s - 2e-6), worst(step_s + 2e-6))
    # By hand: 382 steps, each with a 192nd of 100 MB at 100 Gbit/s, and 5 ms of jitter.
    ring_s = 382 * (step_s + 100e6 / 192 / 12.5e9) + 5e-3
    assert blue.overhead_s(blue.RING, 192, step_s) == pytest.approx(ring_s)


def test_below_twelve_microseconds_a_flat_ring_is_the_fastest() -> None:
    even_s = blue.even_step_s()
    assert even_s == pytest.approx(12.1e-6, abs=0.1e-6)
    for step_s, ahead in ((even_s * 0.99, blue.RING), (even_s * 1.01, blue.BLUECONNECT)):
        seconds = {name: blue.overhead_s(name, 192, step_s) for name in blue.EQUATIONS}
        assert min(seconds, key=seconds.__getitem__) == ahead


@pytest.mark.parametrize(
    ("gpus", "sizes"), [(4, [4, 1, 1]), (8, [4, 2, 1]), (64, [4, 16, 1]), (192, [4, 16, 3])]
)
def test_clusters_of_fewer_gpus(gpus: int, sizes: list[int]) -> None:
    where = blue.cluster(gpus)
    assert [level.size for level in where.levels] == sizes
    assert where.world_size == gpus


def test_figures_that_contradict_each_other() -> None:
    over_gloo = ROWS["throughput of BlueConnect over GLOO, from the paper's 58 and 31 ms"]
    assert over_gloo.simulated == pytest.approx((163 + 58) / (163 + 31))
    over_ring = ROWS["throughput of BlueConnect over Ring, from 31 ms and Ring's 48%"]
    assert over_ring.simulated == pytest.approx(163 / (163 + 31) / 0.52)
    assert ROWS["reduction of the overhead, 58 to 31 ms"].simulated == pytest.approx(
        46.55, abs=0.01
    )


def test_emulated_hosts_count_bytes_alone() -> None:
    whole = ROWS["GLOO over BlueConnect, 4 emulated hosts of 2 ranks"]
    # By hand: twice 3/4 of the bytes over each host's port on both sides, and more inside.
    inside_s = 2**25 / 4.16e9 + 3 * 66.2e-6
    port_s = 2 * (2 * 62.8e-6 + 3 / 4 * 2**25 / 118.5e6)
    blue_s = port_s + 2**25 / 4.16e9 + 2 * 66.2e-6
    assert whole.simulated == pytest.approx((port_s + 2 * inside_s) / blue_s, rel=1e-3)
    assert whole.measured == pytest.approx(0.583286 / 0.584998)
    parts = ROWS["GLOO over BlueConnect in 3 parts, 4 emulated hosts of 2 ranks"]
    assert parts.simulated is None
    assert parts.measured == pytest.approx(0.583286 / 0.515773)


def test_fig_3_over_all_numbers_of_gpus() -> None:
    table = blue.scaling()
    assert [line[0] for line in table.lines] == ["4", "8", "16", "32", "64", "128", "192"]
    assert table.lines[-1][3].startswith("29.6 ms, 85%, 31,")
    ring = [float(line[1].partition(" ")[0]) for line in table.lines]
    assert ring == sorted(ring)
