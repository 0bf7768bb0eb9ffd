"""The shipped runs, from the command line to the memo, with the real tools and playbook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firstbad.agent import cli, runs


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    code = cli.main(args)
    told = capsys.readouterr()
    assert told.err == ""
    return code, told.out


def test_every_shipped_run_is_known() -> None:
    assert runs.demo_names() == ("heron", "otter")


@pytest.mark.parametrize(
    ("name", "code", "outcome", "cause", "first_bad"),
    [
        ("heron", 1, "incident", "reward.verifier_outage", 66),
        ("otter", 0, "healthy", None, None),
    ],
)
def test_a_shipped_run_is_solved_and_every_number_recomputed(
    capsys: pytest.CaptureFixture[str],
    name: str,
    code: int,
    outcome: str,
    cause: str | None,
    first_bad: int | None,
) -> None:
    demo_code, out = call(capsys, "demo", name, "--json")
    found = json.loads(out)
    assert demo_code == 0
    assert (found["outcome"], found["first_bad"]["first_bad"]) == (outcome, first_bad)
    assert (found["cause"] or {}).get("id") == cause
    assert call(capsys, "verify", found["incident"])[0] == 0
    again, out = call(capsys, "investigate", f"demo:{name}", "--json")
    assert again == code
    assert json.loads(out)["layers"] == found["layers"]
    memo = Path(found["memo"]["md"]).read_text(encoding="utf-8")
    assert f"demo:{name}" in memo
    assert str(runs.demo_folder(name)) not in memo
