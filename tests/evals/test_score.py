"""Scores: what counts as named, as leading, and as an error of the first bad step."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firstbad.agent.investigate import Finished
from firstbad.evals import score
from firstbad.evals.score import Score, score_run
from firstbad.playbooks.results import Onset


def scored(
    monkeypatch: pytest.MonkeyPatch,
    truth: dict[str, object],
    outcome: str,
    causes: list[str],
    first_bad: int | None,
    after: int | None = None,
) -> Score:
    """The score of a run whose investigation ended so."""
    verdict: Any = SimpleNamespace(
        outcome=outcome,
        findings=[SimpleNamespace(cause=cause) for cause in causes],
        first_bad=Onset(
            last_good=None,
            first_bad=first_bad,
            signal="kl",
            sampled=after is not None,
            quiet=after,
        ),
    )
    incident: Any = None
    monkeypatch.setattr(score, "investigate", lambda *_, **__: Finished(incident, verdict))
    return score_run(Path("runs/wren"), {"kind": "fault", **truth}, Path("scratch"))


FAULT: dict[str, object] = {"cause": "mask.eos", "onset_step": 50}
SOUND: dict[str, object] = {"cause": "none.healthy", "onset_step": None, "kind": "lookalike"}


@pytest.mark.parametrize(
    ("causes", "first_bad", "named", "leads", "error"),
    [
        (["mask.eos"], 50, True, True, 0),
        (["mask.eos", "id.rows"], 53, True, True, 3),
        (["id.rows", "mask.eos"], 48, True, False, -2),
        (["id.rows"], 50, False, False, 0),
        (["mask.eos"], None, True, True, None),
    ],
)
def test_a_run_with_a_fault(
    monkeypatch: pytest.MonkeyPatch,
    causes: list[str],
    first_bad: int | None,
    named: bool,
    leads: bool,
    error: int | None,
) -> None:
    got = scored(monkeypatch, FAULT, "incident", causes, first_bad)
    assert (got.name, got.kind, got.led_by) == ("wren", "fault", causes[0])
    assert (got.named, got.leads, got.step_error) == (named, leads, error)
    assert got.others == tuple(c for c in causes if c != "mask.eos")


@pytest.mark.parametrize(
    ("after", "first_bad", "error"), [(40, 60, 0), (50, 60, 0), (55, 60, 10), (30, 40, -10)]
)
def test_a_bracket_that_holds_the_step_has_no_error(
    monkeypatch: pytest.MonkeyPatch, after: int, first_bad: int, error: int
) -> None:
    got = scored(monkeypatch, FAULT, "incident", ["mask.eos"], first_bad, after=after)
    assert got.step_error == error


@pytest.mark.parametrize("outcome", ["healthy", "undecided"])
def test_a_fault_that_was_not_found(monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    got = scored(monkeypatch, FAULT, outcome, [], 50)
    assert (got.led_by, got.named, got.leads) == (f"none.{outcome}", False, False)
    assert got.step_error is None, "a step without a cause is no finding"


def test_a_run_without_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    got = scored(monkeypatch, SOUND, "healthy", [], None)
    assert (got.named, got.leads, got.step_error) == (True, True, None)
    got = scored(monkeypatch, SOUND, "incident", ["mask.eos"], 50)
    assert (got.named, got.leads, got.led_by, got.step_error) == (False, False, "mask.eos", None)


def test_findings_count_only_where_an_incident_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not scored(monkeypatch, FAULT, "healthy", ["mask.eos"], 50).named


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs with a truth beside them, and a truth without its run."""
    truths = [
        {"name": "one", "cause": "mask.eos", "onset_step": 50, "kind": "fault"},
        {"name": "two", "cause": "mask.eos", "onset_step": 50, "kind": "fault"},
        {"name": "gone", "cause": "id.rows", "onset_step": 5, "kind": "fault"},
    ]
    (tmp_path / "truth.jsonl").write_text("\n".join(map(json.dumps, truths)) + "\n\n")
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    right = Score("one", "fault", "mask.eos", "incident", "mask.eos", True, True, 2, ())
    wrong = replace(
        right, name="two", led_by="id.rows", leads=False, step_error=None, others=("id.rows",)
    )
    by_name = {"one": right, "two": wrong}
    monkeypatch.setattr(score, "score_run", lambda folder, *_, **__: by_name[folder.name])
    return tmp_path


def told(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str
) -> str:
    places = [str(runs / "runs"), str(runs / "truth.jsonl")]
    monkeypatch.setattr(sys, "argv", ["score", *places, *more])
    score.main()
    return capsys.readouterr().out


def test_table_counts_by_cause_and_names_misses(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, alarm, line = told(runs, monkeypatch, capsys).splitlines()
    assert " ".join(line.split()) == "fault mask.eos 2 2 1 0 [2]; two: id.rows; -"
    assert " ".join(alarm.split()) == "- id.rows 0 0 0 1 []; -; two (mask.eos)"


def test_an_alarm_on_a_sound_run_counts_for_the_cause_that_was_named() -> None:
    sound = Score(
        "wren",
        "lookalike",
        "none.healthy",
        "incident",
        "mask.eos",
        False,
        False,
        None,
        ("mask.eos",),
    )
    right = Score("one", "fault", "mask.eos", "incident", "mask.eos", True, True, 0, ())
    _, fault, lookalike = score.table([sound, right])
    assert " ".join(fault.split()) == "fault mask.eos 1 1 1 1 [0]; -; wren (none.healthy)"
    assert " ".join(lookalike.split()) == "lookalike none.healthy 1 0 0 0 []; wren: mask.eos; -"


def test_json_lists_every_run_that_is_there(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(told(runs, monkeypatch, capsys, "--json"))
    assert [run["name"] for run in found] == ["one", "two"]
