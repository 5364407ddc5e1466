"""Updaters of one's own: classes that servers import by name, over real processes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from syncopate.protocol.rules import SGD, Rules, Updater
from tests.children import HANGS_S, environment
from tests.multiprocess.paramserver.servers import LocalServers

STEPS = 5
SHAPES = {"conv": (7, 3, 3), "large": (3, 500_000)}
SHAPES |= {f"small{number:03d}": (number % 5,) for number in range(100)}
HERE = "tests.multiprocess.paramserver.test_updaters"


class Lion:
    """Lion (Chen et al., 2023, Algorithm 2), with a trust ratio of the slice that it is given."""

    def __init__(self, *, beta1=0.9, beta2=0.99, trust=False):
        self.beta1, self.beta2, self.trust = beta1, beta2, trust

    def step(self, weights, gradient, state, lr):
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weights)
            state["steps"] = torch.zeros(1, dtype=torch.int64)
        state["steps"] += 1
        momentum = state["momentum"]
        update = torch.sign(self.beta1 * momentum + (1 - self.beta1) * gradient)
        if self.trust and weights.numel():
            update = update * (weights.norm() / update.norm().clamp_min(1e-6))
        weights.sub_(update, alpha=lr)
        momentum.mul_(self.beta2).add_(gradient, alpha=1 - self.beta2)


class Broken:
    """Raises in the second step."""

    def step(self, weights, gradient, state, lr):
        state["momentum"] = (
            state["momentum"] + 1 if "momentum" in state else torch.ones_like(weights)
        )
        if state["momentum"].numel() and state["momentum"][0] > 1:
            raise ValueError("no more than one step")


class Forgetful:
    """Remembers what its rule does not name."""

    def step(self, weights, gradient, state, lr):
        state["other"] = gradient.clone()


class Nothing:
    """Has no step."""


def lion(**changed):
    given = {"lr": 0.01, "options": {"beta2": 0.95}, "state": ("momentum", "steps")}
    return Updater(name=f"{HERE}:Lion", **(given | changed))


def weights():
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def gradients(step, worker):
    generator = torch.Generator().manual_seed(100 * step + worker)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def train(store, others=None):
    tensors = weights()
    store.init(tensors, others)
    for step in range(STEPS):
        if step == 3:
            store.set_learning_rate(0.002)
        store.push_many(gradients(step, store.rank))
        store.pull_many(tensors).wait()
    return tensors, store.state()


def trained(servers, rule, others=None):
    rules, names = Rules(optimizer=rule), (rule.name,)
    with LocalServers(servers=servers, workers=2, rules=rules, updaters=names) as job:
        found = [child.result() for child in job.start(train, others)]
        assert job.ended() is None
    assert all(torch.equal(found[0][0][name], found[1][0][name]) for name in SHAPES)
    return found[0]


def test_servers_update_by_a_class_of_ones_own():
    found, state = trained(2, lion())
    expected, states = weights(), {name: {} for name in SHAPES}
    own = Lion(beta2=0.95)
    for step in range(STEPS):
        one, two = (gradients(step, worker) for worker in (0, 1))
        for name, tensor in expected.items():
            mean = ((one[name] + two[name]) / 2).view(-1)
            own.step(tensor.view(-1), mean, states[name], 0.01 if step < 3 else 0.002)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
        assert torch.equal(state[name]["momentum"], states[name]["momentum"])
        assert int(state[name]["steps"]) == STEPS


def test_a_class_that_looks_at_whole_slices_does_so_on_any_number_of_servers():
    rule = lion(options={"trust": True})
    others = {"conv": SGD(lr=0.1)}
    one, three = (trained(servers, rule, others)[0] for servers in (1, 3))
    assert [name for name in SHAPES if not torch.equal(one[name], three[name])] == []


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("os.path:join", {}, "is not allowed to import; allowed: "),
        (f"{HERE}:Missing", {}, "cannot be imported (AttributeError"),
        (f"{HERE}:Lion", {"gamma": 1}, "cannot be made with {'gamma': 1}: TypeError"),
        (f"{HERE}:Nothing", {}, "has no step(weights, gradient, state, lr)"),
        (f"{HERE}:Broken", {}, "raised ValueError: no more than one step"),
        (f"{HERE}:Forgetful", {}, "left a Tensor as state 'other'"),
    ],
)
def test_what_is_wrong_with_a_class_ends_the_job_on_all_workers(name, options, words):
    allowed = tuple(
        f"{HERE}:{one}" for one in ("Missing", "Lion", "Nothing", "Broken", "Forgetful")
    )
    rules = Rules(optimizer=Updater(name=name, lr=0.1, options=options, state=("momentum",)))
    with LocalServers(servers=2, workers=2, rules=rules, updaters=allowed) as job:
        said = [child.refusal() for child in job.start(train)]
        job.ended()
    for text in said:
        assert name in text
        assert words in text


SCRIPT = """
import torch, syncopate
from syncopate.protocol.rules import Rules, Updater
rule = Updater(name="plain:Plain", lr=0.5)
with syncopate.KVStore(Rules(optimizer=rule)) as store:
    weights = torch.zeros(3)
    store.init({"w": weights})
    store.push("w", torch.ones(3))
    store.pull("w", weights).wait()
    print(weights.tolist())
"""

PLAIN = """
class Plain:
    def step(self, weights, gradient, state, lr):
        weights.sub_(gradient, alpha=lr)
"""


@pytest.mark.parametrize("allowed", [True, False])
def test_the_command_line_says_what_servers_may_import(allowed, tmp_path):
    (tmp_path / "plain.py").write_text(PLAIN)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    line = [sys.executable, "-m", "syncopate", "ps", "local", "--servers", "1", "--workers", "1"]
    line += ["--updater", "plain:Plain"] if allowed else []
    done = subprocess.run(
        [*line, "--", sys.executable, str(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        env=environment(),
        cwd=tmp_path,
    )
    assert (done.returncode == 0) == allowed, done.stderr
    assert ("[-0.5, -0.5, -0.5]" in done.stdout) == allowed
    assert allowed or "`--updater plain:Plain`" in done.stderr
