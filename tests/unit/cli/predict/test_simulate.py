"""`syncopate simulate`: ranks that differ, other traffic, sums in switches, failures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.artifacts.timeline import Timeline
from syncopate.reports.pages.spans import chosen
from syncopate.runs import reading
from syncopate.units import format_seconds

PLAY = "simulate -w workload.json -p plan.json -c cluster.json "


@pytest.fixture
def play(run):
    """Play a plan of all-reduces with options; return the timeline and what was printed."""
    assert run("plan -w workload.json -c cluster.json --exchange allreduce")[0] == 0

    def play(options: str) -> tuple[Timeline, str]:
        code, out, err = run(PLAY + options)
        assert (code, "wrote timeline.json" in err) == (0, True), err
        return Timeline.load("timeline.json"), out

    return play


def test_slow_ranks_and_hosts_are_waited_for(play):
    plain, _ = play("")
    slow, _ = play("--slow-rank 3=3 --iterations 4")
    assert (stragglers(slow)[0].rank, stragglers(plain)) == (3, ())
    assert slow.metadata["variation"] == "rank 3 x3"
    assert "variation" not in plain.metadata
    host, _ = play("--slow-rank 0=2 --slow-host 1=3 --iterations 4")
    assert host.metadata["variation"] == "rank 0 x2, host 1 x3"


def test_jitter_is_the_same_for_the_same_seed(play):
    texts = []
    for seed in (1, 1, 2):
        play(f"--jitter 0.1 --seed {seed}")
        texts.append(Path("timeline.json").read_bytes())
    assert texts[0] == texts[1] != texts[2]


def test_a_timeline_lends_how_its_ranks_differ(play):
    play("--slow-rank 3=3 --iterations 4")
    Path("timeline.json").rename("before.json")
    drawn, _ = play("--like before.json --seed 4 --iterations 2")
    assert drawn.metadata["variation"] == "as measured, seed 4"
    computed_s = {
        rank: sum(
            s.duration_s
            for s in drawn.spans
            if s.rank == rank and s.lane in ("forward", "backward")
        )
        for rank in range(drawn.world_size)
    }
    least_s = min(computed_s.values())
    assert {round(value / least_s) for value in computed_s.values()} <= {1, 3}


def test_the_network_may_carry_more_and_add(play):
    plain, _ = play("--iterations 1")
    busy, _ = play("--iterations 1 --background host=0.5")
    summed, _ = play("--iterations 1 --aggregate host")
    slow, _ = play("--iterations 1 --aggregate host --switch-rate 1mbit")
    assert summed.duration_s < plain.duration_s < busy.duration_s < slow.duration_s


def test_another_algorithm_stands_in_for_one_without_a_price(run):
    """A plan of the backend's own algorithm, on a network where that was not measured."""
    planned = "plan -w workload.json -c cluster.json --exchange allreduce --algorithm ring"
    assert run(f"{planned} -o plan.json")[0] == 0
    _, expected, _ = run(PLAY.replace("-c cluster.json", "--network 10gbe --nodes 4"))
    text = Path("plan.json").read_text()
    Path("plan.json").write_text(text.replace('"ring"', '"native"'))
    code, out, err = run(PLAY.replace("-c cluster.json", "--network 10gbe --nodes 4"))
    assert (code, out) == (0, expected), err
    assert "note: native for all_reduce was not measured on '4 nodes, 10gbe': ring stands" in err


def test_failures_give_a_goodput_by_formula_and_drawn(play):
    timeline, out = play("--iterations 1 --mtbf 2d --checkpoint-cost 20s --restart 0s --seed 3")
    told = re.search(r"goodput (\S+)%: an iteration takes (.*) in the mean; simulated (\S+)%", out)
    assert told, out
    goodput, drawn = float(told[1]), float(told[3])
    assert abs(goodput - drawn) < 1.0
    assert told[2] == format_seconds(timeline.duration_s / (goodput / 100)) or goodput > 95
    assert "the best interval is" in out
    assert "seed 3" in out
    assert "goodput" not in play("")[1]


def test_an_iteration_whose_messages_go_on_beside_the_next_takes_what_is_predicted(run):
    """Of parameter servers: pushes end when the next iteration has asked for its weights."""
    busy = "--background host=0.9"
    assert run("plan -w workload.json -c cluster.json --exchange served --servers 1")[0] == 0
    code, out, err = run(f"{PLAY} {busy} --iterations 4 --mtbf 5y")
    assert code == 0, err
    takes = re.search(r"takes (.*?),", out)
    predicted = re.search(r"predicted iteration (.*?) \(", out)
    assert takes
    assert predicted
    assert takes[1] == predicted[1]
    last = [span for span in Timeline.load("timeline.json").spans if span.iteration == 3]
    whole_s = max(span.end_s for span in last) - min(span.start_s for span in last)
    assert format_seconds(whole_s) != takes[1]


def test_of_many_alike_ranks_some_are_looked_at_and_it_is_said(play, run, monkeypatch):
    whole, _ = play("--slow-rank 3=3 --iterations 4")
    assert [one.rank for one in whole.alike] == [0]
    monkeypatch.setattr(reading, "_MANY", 10)
    code, out, err = run("explain timeline.json")
    assert code == 0
    assert "1 of the 4 ranks do what others do" in " ".join(err.split())
    assert "rank 3 computes longer than the others" in out
    assert "nothing is recorded of ranks" not in out
    code, _, err = run("report timeline.json -o run.html")
    assert (code, Path("run.html").exists()) == (0, True), err
    few = reading.read("timeline.json").timeline
    shown = chosen(few, {3: 1.0}, most=20)
    assert set(shown.ranks) <= {0, 1, 3}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--slow-rank 99=2", r"slow rank is 99; it must be in 0\.\.3"),
        ("--slow-rank x=2", "--slow-rank is 'x=2'; it must be a name, '=' and a number"),
        ("--slow-rank 3", "--slow-rank is '3'"),
        ("--slow-rank 3=1 --slow-rank 3=2", "given once for 3"),
        ("--slow-rank 3=0", "factor of rank 3 is 0.0"),
        ("--slow-host x=2", "unknown host 'x'"),
        ("--jitter 2", "jitter is 2.0"),
        ("--seed -1", "seed is -1"),
        ("--like nothing.json", "nothing.json"),
        ("--background host=1", "background on level host is 1.0"),
        ("--background rack=0.1", "unknown level 'rack'"),
        ("--aggregate rack", "unknown level 'rack'"),
        ("--aggregate ,", "levels that aggregate is ()"),
        ("--switch-rate 1gbit", "--switch-rate is '1gbit'; it must be left out without"),
        ("--aggregate host --switch-rate fast", "rate is 'fast'"),
        ("--mtbf soon", "duration is 'soon'; it must be a number and one of ns, us, ms, s, min"),
        ("--mtbf 1s", "training would hardly ever get on"),
        ("--checkpoint-every 5min", "it must be left out without --mtbf"),
        ("--checkpoint-cost 30s", "it must be left out without --mtbf"),
        ("--restart 5min", "it must be left out without --mtbf"),
    ],
)
def test_bad_input_is_one_clear_error(run, play, options, complaint):
    code, out, err = run(PLAY + options)
    assert code != 0
    assert "Traceback" not in err
    plain = re.sub(r"\s+", " ", err)
    assert re.search(complaint, plain) or complaint in plain, err
    assert out == ""
