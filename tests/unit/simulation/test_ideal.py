"""The quick way to an iteration's end: the event kernel's number, to the last bit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.artifacts.cluster import Interference
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.simulation.fluid import Collective
from syncopate.simulation.ideal import iteration_s
from syncopate.simulation.iteration import lasts_s, play_traffic
from syncopate.simulation.traffic import Pull, Traffic

SECONDS = st.one_of(st.just(0.0), st.floats(1e-7, 1.0), st.integers(0, 8).map(lambda n: n / 8))


@st.composite
def iterations(draw: st.DrawFn) -> tuple[Workload, Traffic]:
    """Return a workload and messages on up to three channels and two links; many times coincide."""
    forward_s, backward_s = draw(SECONDS), draw(SECONDS)
    tensor = GradientTensor(name="w", numel=1, backward_s=backward_s)
    workload = Workload(
        model="m", tensors=(tensor,), forward_s=forward_s, backward_s=backward_s, update_s=0.0
    )
    channel = st.integers(0, draw(st.integers(0, 2)))
    link = st.integers(0, draw(st.integers(0, 1)))
    share = st.sampled_from((0.0, 0.25, 0.9, 1.0))
    ready = st.sampled_from((0.0, 0.3, 0.5, 1.0)).map(lambda part: forward_s + part * backward_s)
    pushes = [
        Collective(ready_s, duration_s, duration_s * draw(share), draw(channel), link=draw(link))
        for ready_s, duration_s in draw(st.lists(st.tuples(ready, SECONDS), max_size=6))
    ]
    pulls = [
        Pull(part * forward_s, duration_s, duration_s * draw(share), draw(channel), link=draw(link))
        if draw(st.integers(0, 3))
        else None
        for part, duration_s in draw(
            st.lists(st.tuples(share, SECONDS), min_size=len(pushes), max_size=len(pushes))
        )
    ]
    there = tuple(pulls) if any(pulls) and draw(st.booleans()) else ()
    order = tuple(draw(st.permutations(range(len(there)))))
    pushed = tuple(sorted(pushes, key=lambda push: push.ready_s))
    return workload, Traffic(pushed, there, draw(SECONDS), order)


@settings(max_examples=60)
@given(iterations())
def test_the_end_is_that_of_the_event_kernel_to_the_last_bit(drawn: tuple[Workload, Traffic]):
    workload, traffic = drawn
    played = play_traffic(workload, traffic)
    assert iteration_s(workload, traffic) == played.iteration_s
    assert lasts_s(workload, traffic) == played.iteration_s


@settings(max_examples=20)
@given(iterations(), st.floats(0.1, 1.0), st.floats(1.0, 3.0))
def test_with_interference_the_event_kernel_is_asked(
    drawn: tuple[Workload, Traffic], rate: float, stretch: float
):
    interference = Interference(compute_rate=rate, collective_stretch=stretch)
    workload, traffic = drawn
    played = play_traffic(workload, traffic, interference)
    assert lasts_s(workload, traffic, interference) == played.iteration_s
