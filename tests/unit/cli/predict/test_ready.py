"""Models by name and GPUs in hosts, on the command line."""

from __future__ import annotations

import json

import pytest

from syncopate.artifacts.plan import Plan


def test_a_model_by_name_is_planned_for(run) -> None:
    line = "plan --model resnet50 --device v100 --network 10gbe --nodes 4 --batch 32 -o plan.json"
    code, _, err = run(line)
    assert code == 0, err
    assert "images of 224 x 224" in err
    assert "here 32 samples" in err
    plan = Plan.load("plan.json")
    assert (plan.model, plan.world_size) == ("resnet50", 4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plan --network 10gbe --nodes 4", "--workload is not given; it must be given, or else"),
        ("plan --model bert-large --network 10gbe --nodes 4", "--device is not given"),
        ("plan --model bert --device h100 --network 10gbe --nodes 4", "unknown model 'bert'"),
        ("plan -w workload.json --device h100 --network 10gbe --nodes 4", "given with --model"),
        (
            "plan -w workload.json --model resnet50 --device h100 --network 10gbe --nodes 4",
            "the only one of it and --model",
        ),
        ("plan -w workload.json --network 10gbe --nodes 4 --gpus-per-node 0", "--gpus-per-node is"),
        ("plan -w workload.json -c cluster.json --gpus-per-node 8", "the only one of --cluster"),
    ],
)
def test_what_does_not_fit_together_is_refused(run, line, said) -> None:
    code, _, err = run(line)
    assert code == 2
    assert said in " ".join(err.split())


def test_gpus_of_a_host_are_ranks_that_share_its_link(run) -> None:
    worlds = {}
    for gpus in ("", " --gpus-per-node 8"):
        code, out, err = run(
            f"plan -w workload.json --network 10gbe --nodes 4{gpus} --json -o p.json"
        )
        assert code == 0, err
        worlds[gpus] = json.loads(out)[0]["world_size"]
    assert worlds == {"": 4, " --gpus-per-node 8": 32}
