"""Names from files: none makes a line of its own."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from tests.unit import examples


def test_new_lines_in_names_are_shown_and_make_no_lines(run):
    work, cluster = examples.workload(), examples.cluster()
    forged = "a\x07\nerror: forged"
    tensors = (structs.replace(work.tensors[0], name=forged), *work.tensors[1:])
    work = structs.replace(work, model=forged, tensors=tensors)
    work.save("workload.json")
    structs.replace(cluster, name=forged, warnings=(forged,)).save("cluster.json")
    Path("a\nerror: forged.json").write_bytes(work.to_json())
    lines = ["plan -w workload.json -c cluster.json -o plan.json", "choose cluster.json"]
    lines += ["whatif workload.json -c cluster.json"]
    lines += ["simulate -w workload.json -p plan.json -c cluster.json -o timeline.json"]
    lines += ["analyze timeline.json", "explain timeline.json -w workload.json -c cluster.json"]
    lines += ["compare timeline.json timeline.json", "replay timeline.json -c cluster.json"]
    for line in lines:
        code, out, err = run(line)
        assert code == 0, err
        printed = [one.strip(" \u2502") for one in (out + err).splitlines()]
        assert not [one for one in printed if one.startswith("error")], line
        assert "\x07" not in out + err
        assert r"a\x07\nerror: forged" in out + err, line
    code, _, err = run(["plan", "-w", "no\nerror: forged", "-c", "cluster.json"])
    assert code == 2
    assert r"error: no\nerror: forged: cannot read this workload file" in err.splitlines()[-1]
