"""Files for clusters: batch scripts, manifests and the image, checked by rules and by their tools.

The rules hold everywhere; the tools (a shell, Kubernetes' schemas, a parser of container files)
check where they are installed.
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

import syncopate
from syncopate.cli.app import app
from syncopate.metrics.place import VARIABLE as METRICS
from syncopate.metrics.place import place_of
from syncopate.paramserver.job import job_from
from syncopate.ports import VARIABLE as PORTS
from syncopate.ports import ports_of

REPOSITORY = Path(__file__).parents[1]
DEPLOY = REPOSITORY / "deploy"
SCRIPTS = sorted(DEPLOY.glob("slurm/*.sbatch"))
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
VERSIONS = ("1.28", "1.32")
"""Of Kubernetes, whose schemas the manifests keep to."""

_OPTION = re.compile(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", re.MULTILINE)
_KNOWN = {"job-name", "nodes", "ntasks-per-node", "time", "output", "exclusive"}

by_name = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)


def commands_of(text: str) -> list[list[str]]:
    """Return the commands of Syncopate that a script runs, a list of words each."""
    whole = text.replace("\\\n", " ")
    lines = [line for line in whole.splitlines() if not line.startswith("#")]
    found = [re.search(r"\bsyncopate ([a-z].*)", line) for line in lines]
    return [shlex.split(match[1]) for match in found if match]


def require_command(words: list[str]) -> None:
    """Refuse a command or option that the command line does not have."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert not hasattr(command, "commands"), words
    assert {word for word in words if word.startswith("--")} <= known


def test_there_is_a_script_for_each_work():
    assert [path.stem for path in SCRIPTS] == ["bench", "calibrate", "train"]


@by_name
def test_a_batch_script_is_sound(path):
    text = path.read_text()
    assert text.startswith("#!/bin/bash\n")
    options = dict(_OPTION.findall(text))
    assert set(options) <= _KNOWN
    assert len(options) == text.count("\n#SBATCH")
    # sbatch reads no option behind the first command.
    assert text.rindex("\n#SBATCH") < text.index("\nset -euo pipefail\n")
    for variable in ("MASTER_ADDR", "MASTER_PORT", PORTS):
        assert f"{variable}=" in text
    ports_of(re.search(rf"{PORTS}:-([0-9-]+)", text)[1])
    for words in commands_of(text):
        require_command(words)


@by_name
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_shell_reads_each_batch_script(path):
    found = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@by_name
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_what_a_batch_script_starts(path, tmp_path):
    """With a stand-in for each of Slurm's programs, which writes down what it was called with."""
    stand_ins = {
        "scontrol": "printf 'node01\\nnode02\\n'",
        "srun": 'printf "%s|" "$MASTER_ADDR" "$MASTER_PORT" "$SYNCOPATE_PORTS" "$@"',
    }
    for name, does in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    told = {"SLURM_JOB_NODELIST": "node[01-02]", "SLURM_JOB_ID": "1234"}
    search = f"{tmp_path}:/usr/bin:/bin"
    found = subprocess.run(
        ["bash", path, "train.py", "--epochs", "3"],
        capture_output=True, text=True, check=True, env={"PATH": search} | told,
    )  # fmt: skip
    address, port, ports, *words = found.stdout.rstrip("|").split("|")
    assert (address, port, ports) == ("node01", "29534", "29600-29699")
    assert words[0] == "--kill-on-bad-exit=1"
    if path.stem == "train":
        assert words[-4:] == ["1", "train.py", "--epochs", "3"]
        assert '--nproc-per-node "$0"' in words[3]
    else:
        assert words[1:3] == ["syncopate", path.stem]


# -- Kubernetes ------------------------------------------------------------------------------------


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a manifest."""
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text()))


def pods(found: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the metadata and specification of each template of pods."""
    templates = [one["spec"]["template"] for one in found if "template" in one.get("spec", {})]
    return [(each["metadata"], each["spec"]) for each in templates]


def environment_of(container: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, str]:
    """Return the variables of a container as far as the manifest has their values."""
    maps = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    told: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        told |= maps[source["configMapRef"]["name"]]
    return told | {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}


manifests = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)


@manifests
def test_objects_of_a_manifest_fit_together(path):
    found = documents(path)
    labels = [metadata["labels"] for metadata, _ in pods(found)]
    names = {(one["kind"], one["metadata"]["name"]) for one in found}
    assert len(names) == len(found)
    for one in found:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            assert spec["clusterIP"] == "None"
            assert any(spec["selector"].items() <= mine.items() for mine in labels)
        if one["kind"] == "NetworkPolicy":
            chosen = spec["podSelector"]["matchLabels"]
            assert all(chosen.items() <= mine.items() for mine in labels)
        if one["kind"] == "StatefulSet":
            assert ("Service", spec["serviceName"]) in names
            own = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"].items() <= own.items()
        if one["kind"] == "Job":
            assert spec["completionMode"] == "Indexed"
            assert spec["completions"] == spec["parallelism"]
            assert spec["template"]["spec"]["restartPolicy"] == "Never"


@manifests
def test_pods_have_what_they_mount_and_no_more_rights_than_they_need(path):
    found = documents(path)
    claims = {one["metadata"]["name"] for one in found if one["kind"] == "PersistentVolumeClaim"}
    for one in found:
        template = one.get("spec", {}).get("template")
        if template is None:
            continue
        spec = template["spec"]
        assert "fsGroup" not in spec.get("securityContext", {})  # the group would read the key
        there = {volume["name"] for volume in spec.get("volumes", ())}
        there |= {each["metadata"]["name"] for each in one["spec"].get("volumeClaimTemplates", ())}
        for volume in spec.get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o400
        for container in spec["containers"]:
            assert {each["name"] for each in container.get("volumeMounts", ())} <= there
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert container["image"].endswith(f":{syncopate.__version__}")


@manifests
def test_what_pods_are_told_is_understood(path):
    found = documents(path)
    for _, spec in pods(found):
        for container in spec["containers"]:
            told = environment_of(container, found)
            assert place_of(told[METRICS]).port in {p["containerPort"] for p in container["ports"]}
            ports_of(told[PORTS])
            words = container["command"]
            if words[0] == "syncopate":
                require_command(words[1:])
            if "DMLC_PS_ROOT_URI" in told:
                job = job_from(told, words[2] if words[:2] == ["syncopate", "ps"] else "worker")
                assert (job.servers, job.workers, str(job.key)) == (2, 4, "/key/job.key")
            elif words == ["torchrun"]:
                require_torchrun(container["args"])


def require_torchrun(arguments: list[str]) -> None:
    """Refuse options that torchrun does not have."""
    run = pytest.importorskip("torch.distributed.run")
    told = [one.replace("$(JOB_COMPLETION_INDEX)", "3") for one in arguments]
    parsed = run.get_args_parser().parse_args(told)
    assert (parsed.nnodes, parsed.node_rank, parsed.master_port) == ("4", 3, 29500)
    assert (REPOSITORY / parsed.training_script).exists()


def test_as_many_pods_are_started_as_the_job_has_nodes():
    found = documents(DEPLOY / "kubernetes/paramserver.yaml")
    named = {(one["kind"], one["metadata"]["name"]): one for one in found}
    told = named["ConfigMap", "syncopate-ps"]["data"]
    servers = named["StatefulSet", "syncopate-server"]["spec"]["replicas"]
    workers = named["Job", "syncopate-worker"]["spec"]["completions"]
    assert (servers, workers) == (int(told["DMLC_NUM_SERVER"]), int(told["DMLC_NUM_WORKER"]))


@manifests
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="no kubernetes-validate")
def test_manifests_keep_to_kubernetes_schemas(path, version):
    validate = importlib.import_module("kubernetes_validate").validate
    for one in documents(path):
        assert validate(one, version, strict=True) is not None


# -- the image -------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the container file, and what follows each."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_an_image_copies_what_is_there_and_installs_extras_that_are():
    found = instructions()
    assert found[0][0] == "FROM"
    assert {word for word, _ in found} <= {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "CMD"}
    for word, rest in found:
        if word == "COPY":
            for source in rest.split()[:-1]:
                assert (REPOSITORY / source).exists(), source
    extras = re.findall(r"'\.\[([a-z,]+)\]'", "".join(rest for _, rest in found))
    known = (REPOSITORY / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in known for extra in extras[0].split(","))


@pytest.mark.skipif(find_spec("dockerfile_parse") is None, reason="no dockerfile-parse")
def test_a_parser_of_container_files_reads_the_image(tmp_path):
    (tmp_path / "Dockerfile").write_text((DEPLOY / "Containerfile").read_text())
    parser = importlib.import_module("dockerfile_parse").DockerfileParser
    parsed = parser(str(tmp_path)).structure
    words = [one["instruction"] for one in parsed if one["instruction"] != "COMMENT"]
    assert words == [word for word, _ in instructions()]
