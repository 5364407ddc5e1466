"""Sentences: what is said of points made by hand."""

from __future__ import annotations

from syncopate.artifacts.plan import Prediction
from syncopate.artifacts.results.whatif import (
    BEST,
    DDP,
    Change,
    LinkNeeded,
    Outcome,
    Point,
    Setting,
)
from syncopate.planning.whatif import sentences
from syncopate.planning.whatif.changes import ranked
from syncopate.units import parse_link

_10G = parse_link("10g")


def _outcome(efficiency: float) -> Outcome:
    prediction = Prediction(
        iteration_s=0.1,
        compute_s=0.1 * efficiency,
        communication_s=0.1,
        exposed_s=0.1 * (1 - efficiency),
        bound_s=0.05,
        low_s=0.08,
        high_s=0.13,
    )
    return Outcome(
        policy="quick",
        exchange="allreduce",
        buckets=3,
        prediction=prediction,
        throughput=1234.0,
        low_throughput=1000.0,
        high_throughput=1500.0,
        efficiency=efficiency,
    )


def _points(*efficiencies: tuple[float, float], bandwidth: float = _10G) -> list[Point]:
    return [
        Point(
            setting=Setting(
                nodes=2**place,
                gpus_per_node=1,
                bandwidth_bytes_per_s=bandwidth,
                latency_s=1e-5,
            ),
            ddp=_outcome(plain),
            best=_outcome(best),
        )
        for place, (plain, best) in enumerate(efficiencies)
    ]


def _change(kind: str, gain: float, asks: str = "hardware") -> Change:
    return Change(kind=kind, words=f"do {kind}", asks=asks, gain=gain, efficiency=1, iteration_s=1)


def test_today_has_its_interval_and_its_bound():
    (point,) = _points((0.4, 0.9))
    assert sentences.today_sentence(point, DDP, "samples/s") == (
        "1 node at 10 Gbit/s, DDP's buckets: 100.00 ms an iteration (80.00 ms to 130.00 ms), "
        "1,234 samples/s, 40% efficiency; computation and line rate allow 50.00 ms"
    )


def test_the_network_limits_from_where_it_keeps_too_little_for_good():
    points = _points((1.0, 1.0), (0.8, 0.95), (0.95, 0.93), (0.7, 0.92), (0.6, 0.91))
    assert list(sentences.limits(points, ("nodes",), 0.9)) == [
        "with DDP's buckets the network limits from 8 nodes on (70%, 54% to 87% "
        "there); with the best plan the network does not limit up to 16 nodes (91%, 70% to 100% "
        "there)"
    ]


def test_each_series_has_its_own_sentence_up_to_six():
    points = [
        point
        for gbit in (1, 10, 25, 40, 50, 100, 200, 400)
        for point in _points((0.5, 0.5), bandwidth=parse_link(f"{gbit}g"))
    ]
    said = list(sentences.limits(points, ("nodes", "bandwidth"), 0.9))
    assert said[1].startswith("10 Gbit/s: with DDP's buckets the network limits from 1 node on")
    assert len(said) == 7
    assert said[-1] == "and 2 more series, in the table"


def test_of_a_single_axis_every_value_is_said():
    points = [
        point for gbit in (1, 10) for point in _points((0.5, 0.7), bandwidth=parse_link(f"{gbit}g"))
    ]
    assert list(sentences.limits(points, ("bandwidth",), 0.9)) == [
        "efficiency with DDP's buckets: 1 Gbit/s 50%, 38% to 62%; 10 Gbit/s 50%, 38% to 62%",
        "efficiency with the best plan: 1 Gbit/s 70%, 54% to 87%; 10 Gbit/s 70%, 54% to 87%",
    ]
    assert list(sentences.limits(points, ("bandwidth", "latency"), 0.9)) == []
    assert list(sentences.limits(points * 5, ("bandwidth",), 0.9)) == []


def test_of_equal_gains_what_asks_for_least_comes_first():
    found = ranked(
        [
            _change("k", 1.003, "training"),
            _change("links", 1.0),
            _change("plan", 1.0, "nothing"),
            _change("compute", 0.5),
        ]
    )
    assert [one.kind for one in found] == ["plan", "links", "k", "compute"]


def test_the_best_change_and_the_best_that_is_free():
    (base,) = _points((0.4, 0.9))
    changes = ranked([_change("links", 0.6), _change("plan", 0.25, "nothing")])
    assert list(sentences.best_change(changes, base, DDP)) == [
        "the single change that gains most: do links, 1.60x the throughput",
        "of those that ask for no other hardware and no other training: do plan, 1.25x",
    ]


def test_when_nothing_of_the_network_gains_that_is_said():
    (base,) = _points((0.99, 0.99))
    changes = ranked([_change("links", 0.01), _change("compute", 0.9)])
    first, second = sentences.best_change(changes, base, BEST)
    assert first == (
        "no other network, plan, exchange or delay gains 2%: computation is 99% of an iteration "
        "already; faster devices are what is left"
    )
    assert second.startswith("the single change that gains most: do compute")
    # Of what was interrupted before changes were predicted, nothing is said.
    assert list(sentences.best_change((), base, BEST)) == []
    larger = ranked([_change("links", 0.01), _change("batch", 0.3)])
    assert "faster devices and larger batches are" in next(
        iter(sentences.best_change(larger, base, BEST))
    )


def test_links_are_said_for_neighbouring_nodes_together():
    def needed(nodes: int, gbit: int, least: float = 0.0) -> LinkNeeded:
        rate = parse_link(f"{gbit}g") if gbit else 0.0
        return LinkNeeded(
            nodes=nodes, today=DDP, link="", bandwidth_bytes_per_s=rate, least_bytes_per_s=least
        )

    found = [needed(4, 10), needed(8, 10), needed(16, 25, 2e9), needed(64, 0)]
    assert list(sentences.link_sentences(found, 0.9, "")) == [
        "to keep 90% with DDP's buckets takes 10 Gbit/s on 4 to 8 nodes; 25 Gbit/s on 16 nodes (at "
        "least 16.00 Gbit/s of messages); more than any link that is sold on 64 nodes"
    ]


def test_sentences_begin_and_end_as_such():
    assert sentences.whole("the end") == "The end."
