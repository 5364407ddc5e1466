"""What ``make reproduce`` asks of every script."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import blueconnect
import mg_wfbp

REPOSITORY = Path(__file__).parents[3]
SCRIPTS = re.findall(r"^PAPERS := (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)[0]


@pytest.mark.parametrize("script", SCRIPTS.split())
def test_every_script_is_there_and_can_be_quick(script: str) -> None:
    source = (REPOSITORY / "reproduce" / f"{script}.py").read_text()
    assert '"--quick"' in source
    assert 'if __name__ == "__main__":' in source


def test_a_quick_run_leaves_out_what_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    blueconnect.main(["--quick", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (len(report["equations"]), report["choices"], report["auto"]) == (3, [], [])
    mg_wfbp.main(["--quick", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["nodes"] for row in rows] == [2, 4, 8, 64]
