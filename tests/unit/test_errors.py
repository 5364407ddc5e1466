"""Errors: one hierarchy, messages with value, rule and alternatives, exit codes."""

from __future__ import annotations

import inspect
import sys

import pytest

from syncopate import errors


def test_the_messages_are_complete():
    assert str(errors.InvalidValueError("size", "-1", "an integer >= 0")) == (
        "size is '-1'; it must be an integer >= 0"
    )
    assert str(errors.UnknownNameError("algorithm", "rign", ["ring", "tree"], "all_reduce")) == (
        "unknown algorithm 'rign' for all_reduce; known: ring, tree"
    )
    assert str(errors.UnknownNameError("policy", "x", {"wfbp": 1})) == (
        "unknown policy 'x'; known: wfbp"
    )
    assert str(errors.ArtifactError("a.json", "missing", "$.name")) == "a.json at $.name: missing"
    assert str(errors.ArtifactError("a.json", "truncated")) == "a.json: truncated"
    lost = errors.CollectiveError("all_reduce (ring)", "rank 3 is gone", [3])
    assert str(lost) == "all_reduce (ring): rank 3 is gone"
    assert lost.ranks == (3,)


def test_of_a_long_value_the_beginning_is_shown():
    said = str(errors.InvalidValueError("placement", list(range(1000)), "a permutation"))
    assert said.startswith("placement is [0, 1, 2, ")
    assert said.endswith(" .. (4890 characters); it must be a permutation")
    assert len(said) < 300


def test_every_error_is_a_syncopate_error_with_an_exit_code():
    classes = [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__
    ]
    assert len(classes) == 13
    for cls in classes:
        assert issubclass(cls, errors.SyncopateError)
        assert cls.exit_code in (1, 2)


@pytest.mark.parametrize("cls", [errors.InvalidValueError, errors.UnknownNameError])
def test_wrong_values_are_value_errors_and_usage_errors(cls):
    assert issubclass(cls, ValueError)
    assert cls.exit_code == 2


def test_of_a_missing_package_both_ways_to_install_it_are_said():
    missing = errors.MissingPackageError("an HTML page", "jinja2")
    assert isinstance(missing, ModuleNotFoundError)
    assert (missing.name, missing.exit_code) == ("jinja2", 1)
    assert str(missing) == (
        "an HTML page needs jinja2, which is not installed: "
        f"{sys.executable} -m pip install 'jinja2>=3.1', or from the clone '.[html]'"
    )
    assert "needs scikit-learn, which" in str(errors.MissingPackageError("the demo", "sklearn"))


def test_what_a_terminal_would_obey_is_shown():
    assert errors.visible("a\tb\n\u6a21\xef") == "a\tb\n\u6a21\xef"
    assert errors.visible("\x1b[31m\x07\r\x9b\u202e\x7f") == r"\x1b[31m\x07\r\x9b\u202e\x7f"
    assert errors.visible("a\u2028\u2029\u200e\u200f\u061cb") == r"a\u2028\u2029\u200e\u200f\u061cb"
    assert str(errors.ArtifactError("a\x1b[2J.json", "no")) == r"a\x1b[2J.json: no"


def test_nothing_given_is_said_so():
    told = str(errors.InvalidValueError("--nodes", None, "an integer >= 1"))
    assert told == "--nodes is not given; it must be an integer >= 1"


def test_a_name_with_a_new_line_makes_no_line_of_its_own():
    assert errors.one_line("a\nb\x85\u2028\tc\x1b") == r"a\nb\x85\u2028" + "\tc" + r"\x1b"
    told = r"a\nerror: forged: no"
    assert str(errors.ArtifactError("a\nerror: forged", "no")) == told
    assert str(errors.PlanError("a\nerror: forged: no")) == told


def test_what_other_programs_said_keeps_its_lines():
    for cls in (errors.EngineError, errors.ParameterServerError):
        assert str(cls("it said:\nno\x1b")) == "it said:\nno" + r"\x1b"
    assert str(errors.CollectiveError("barrier", "it said:\nno")) == "barrier: it said:\nno"
