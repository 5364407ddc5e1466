"""Workloads of several ranks: the slowest at every moment, counted from the first to start."""

from __future__ import annotations

import pytest

from syncopate.profiling.samples import Iteration, slowest, workload


def _iteration(**changes: object) -> Iteration:
    usual = {"forward_s": 1.0, "backward_s": 2.0, "update_s": 0.5, "ready_s": {"a": 1.0, "b": 2.0}}
    return Iteration(**(usual | changes))  # type: ignore[arg-type]


def test_without_starts_the_slowest_rank_decides_every_moment() -> None:
    one = slowest([_iteration(), _iteration(forward_s=1.5, ready_s={"a": 0.2, "b": 2.0})])
    assert one.forward_s == 1.5
    assert one.backward_s == 2.0
    assert one.ready_s == {"a": 0.5, "b": 2.0}


def test_a_rank_that_starts_late_on_its_host_ends_late() -> None:
    first, late = _iteration(began_s=10.0, host="x"), _iteration(began_s=10.4, host="x")
    one = slowest([first, late])
    assert one.forward_s == pytest.approx(1.4)
    assert one.forward_s + one.backward_s + one.update_s == pytest.approx(3.9)
    assert one.ready_s["b"] == pytest.approx(2.0)


def test_clocks_of_different_hosts_are_not_compared() -> None:
    one = slowest([_iteration(began_s=10.0, host="x"), _iteration(began_s=99.0, host="y")])
    assert one.forward_s == 1.0
    assert one.backward_s == 2.0


def test_the_whole_is_a_mean_and_the_parts_add_up_to_the_last_ready_time() -> None:
    quick, slow = _iteration(), _iteration(backward_s=4.0, ready_s={"a": 1.0, "b": 4.0})
    made = workload("m", {"a": (1, "float32"), "b": (1, "float32")}, [quick] * 3 + [slow] * 3, {})
    assert made.backward_s == pytest.approx(3.0)
    assert sum(tensor.backward_s for tensor in made.tensors) == pytest.approx(3.0)


def test_forward_order_is_that_of_the_modules_and_what_none_owns_stays_where_backward_has_it() -> (
    None
):
    ready_s = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    sizes = dict.fromkeys((*ready_s, "idle"), (1, "float32"))

    def order(*used: str) -> list[str]:
        made = workload("m", sizes, [_iteration(backward_s=4.0, ready_s=ready_s, used=used)], {})
        return [made.tensors[index].name for index in made.forward_order]

    # Nobody looked, or all is as usual: the reverse of ready order.
    assert order() == order("idle", "d", "c", "b", "a") == []
    assert order("b", "d", "c", "a") == ["b", "d", "c", "a", "idle"]
    assert order("a", "idle", "d") == ["a", "idle", "d", "c", "b"]
    assert order("c", "b") == ["d", "c", "b", "a", "idle"]


def test_parameters_of_one_module_stand_where_backward_has_them() -> None:
    ready_s = {"b.weight": 1.0, "b.bias": 2.0, "a.weight": 3.0, "a.bias": 4.0}
    sizes = dict.fromkeys(ready_s, (1, "float32"))

    def order(*used: str) -> tuple[int, ...]:
        once = _iteration(backward_s=4.0, ready_s=ready_s, used=used)
        return workload("m", sizes, [once], {}).forward_order

    assert order("a.weight", "a.bias", "b.weight", "b.bias") == ()
    assert order("b.weight", "b.bias", "a.weight", "a.bias") == (1, 0, 3, 2)


def test_the_last_iteration_on_rank_0_says_the_order_of_forward() -> None:
    ranks = [_iteration(used=("b", "a")), _iteration(used=("a", "b"))]
    assert slowest(ranks).used == ("b", "a")
    sizes = {"a": (1, "float32"), "b": (1, "float32")}
    assert workload("m", sizes, ranks, {}).forward_order == (0, 1)
    assert workload("m", sizes, ranks[::-1], {}).forward_order == ()
