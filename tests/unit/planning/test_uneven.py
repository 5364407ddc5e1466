"""Where shards are unequal, the search plays the shards that there are going to be."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import SHARDED, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.training import exchange_costs
from syncopate.planning import make_plan, predict
from syncopate.planning.parts import WHOLE
from syncopate.planning.question import Question, question_of
from syncopate.planning.registry import rivals
from syncopate.planning.search import search
from syncopate.planning.search.player import Player
from syncopate.planning.search.search import searched
from syncopate.planning.search.uneven import Uneven, is_uneven

CLUSTER = Cluster.preset("1gbe", 4)


def random_workload(seed: int) -> Workload:
    """Some large tensors among small ones, of two dtypes now and then; about half are whole."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(4, 14))
    numels = np.where(
        rng.random(length) < 0.4,
        rng.integers(200_000, 3_000_000, length),
        rng.integers(10, 30_000, length),
    )
    narrow = rng.random(length) < (0.3 if seed % 3 == 0 else 0.0)
    backward_s = float(rng.uniform(0.2, 3.0)) * 1e-8 * numels
    tensors = tuple(
        GradientTensor(
            name=f"m{i}.w",
            numel=int(numel),
            dtype="bfloat16" if narrow[i] else "float32",
            backward_s=float(backward_s[i]),
            forward_s=float(backward_s[i]) / 2,
        )
        for i, numel in enumerate(numels)
    )
    whole = tuple(int(i) for i in np.flatnonzero(rng.random(length) < 0.5)) or (0,)
    return Workload(
        model="uneven",
        tensors=tensors,
        forward_s=float(backward_s.sum()) / 2,
        backward_s=float(backward_s.sum()) * (1 + 1e-9),
        update_s=0.01,
        whole=whole,
    )


def question(workload: Workload, channels: int = 1, cluster: Cluster = CLUSTER) -> Question:
    costs = {SHARDED: exchange_costs(cluster, workload.nbytes, SHARDED)}
    return question_of(workload, cluster, costs, channels=(channels,))


def iteration_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("grain", [WHOLE, 1_500_000])
def test_a_score_is_what_the_plan_is_predicted_to_take(channels: int, grain: float) -> None:
    for seed in range(4):
        workload = random_workload(seed)
        asked = question(workload, channels)
        player = Player(asked.problem, workload, CLUSTER.interference, channels)
        uneven = player.with_shards(Uneven(asked)).cut_to(grain)
        length = len(workload.tensors)
        for partition in ((length,), tuple(range(1, length + 1)), (length // 2, length)):
            draft = asked.draft(partition, grain)
            score_s, messages = uneven.score(partition)
            predicted = asked.predict(draft)
            assert messages == len(draft.buckets)
            assert max(score_s, predicted.bound_s) == pytest.approx(
                predicted.iteration_s, rel=1e-12
            )


def test_plans_are_never_worse_than_those_of_equal_shards_and_some_are_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gains = []
    for seed in range(8):
        workload = random_workload(seed)
        suited = make_plan(workload, CLUSTER, exchange=SHARDED, channels=1 + seed % 2)
        with monkeypatch.context() as patch:
            patch.setattr(search, "is_uneven", lambda _: False)
            equal = make_plan(workload, CLUSTER, exchange=SHARDED, channels=1 + seed % 2)
        assert suited.prediction == predict(workload, suited, CLUSTER)
        gains.append(1 - iteration_s(suited) / iteration_s(equal))
    assert min(gains) >= 0
    assert max(gains) > 0.01


def test_where_shards_are_equal_nothing_changes() -> None:
    workload = random_workload(1)
    assert is_uneven(question(workload))
    assert not is_uneven(question(structs.replace(workload, whole=())))
    assert not is_uneven(question(workload, cluster=Cluster.preset("1gbe", 1)))


def test_the_same_question_has_the_same_answer() -> None:
    workload = random_workload(5)
    assert searched(question(workload, 2), rivals()) == searched(question(workload, 2), rivals())
