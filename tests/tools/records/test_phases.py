"""What differs on both sides of a resume, a new phase, new settings or new prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from firstbad.tools.evidence import Evidence
from firstbad.tools.flight import Flight, Process
from firstbad.tools.run import RolloutBatch, Run

TOOL = "compare_phases"
MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Read = Callable[..., Evidence]


def changed(batch: MakeBatch, at: int) -> list[RolloutBatch]:
    """Twenty steps of two prompts, which get longer and harder at a step."""

    def rows(step: int) -> RolloutBatch:
        late = step >= at
        return batch(
            step,
            prompts=["add 1 and 2 now" if late else "add 1"] * 4,
            completions=["so 3" if late else "3"] * 4,
            rewards={"correct": [1, 0, 0, 0] if late else [1, 1, 1, 0]},
            total=[1, 0, 0, 0] if late else [1, 1, 1, 0],
            finish=["length"] * 4 if late else ["stop"] * 4,
            size=2,
        )

    return [rows(step) for step in range(1, 21)]


def shown(found: Evidence) -> dict[str, tuple[Any, Any]]:
    (table,) = found.tables
    return {str(name): (before, after) for name, before, after in table.rows}


def test_prompts_answers_and_signals_on_both_sides(
    make_run: MakeRun, batch: MakeBatch, evidence: Read
) -> None:
    run = make_run(
        rollouts=changed(batch, 13),
        signals={"entropy": np.where(np.arange(1, 21) < 13, 1.5, 2.5)},
        events=[("phase", 13, "harder"), ("warning", 4, "slow"), ("phase", None, "some time")],
    )
    found = evidence(TOOL, run)
    (table,) = found.tables
    assert table.title == "both sides of step 13: new phase, new prompts"
    assert table.columns == ("of", "before (3 to 12)", "after (13 to 20)")
    rows = shown(found)
    assert rows["new phase"] == (None, "harder")
    assert rows["a prompt"] == ("add 1", "add 1 and 2 now")
    assert rows["words of a prompt"] == (2.0, 5.0)
    assert rows["prompts that no earlier step asked"] == (0.0, 1.0)
    assert rows["words of an answer"] == (1.0, 2.0)
    assert rows["reward of the rollouts"] == rows["`correct`"] == (0.75, 0.25)
    assert rows["share cut, by finish reason"] == (0.0, 1.0)
    assert rows["entropy (nats)"] == (1.5, 2.5)
    assert "KL to the reference (nats)" not in rows
    metrics = found.metrics or {}
    assert (metrics["n_phases"], metrics["n_prompts"], metrics["last_step"]) == (1, 1, 13)


def test_settings_at_a_resume_are_told(make_run: MakeRun, batch: MakeBatch, evidence: Read) -> None:
    same = changed(batch, 99)
    events = [("resume", 11, "again"), ("config_change", 11, "beta: 0.0 -> 0.04")]
    found = evidence(TOOL, make_run(rollouts=same, events=events))
    rows = shown(found)
    assert rows["new settings"] == (None, "beta: 0.0 -> 0.04")
    assert rows["prompts that no earlier step asked"] == (1.0, 0.0)
    assert found.summary == "changes on record: step 11 (resume, new settings)"


def test_device_and_environment_of_both_sides(
    make_run: MakeRun, batch: MakeBatch, evidence: Read
) -> None:
    processes = [
        Process(None, "one card", {"WORLD_SIZE": "1"}),
        Process(13, "two cards", {"WORLD_SIZE": "2", "SEED": "7"}),
    ]
    events = [("resume", 13, "again")]
    run = make_run(rollouts=changed(batch, 99), events=events, flight=Flight(processes=processes))
    rows = shown(evidence(TOOL, run))
    assert rows["device"] == ("one card", "two cards")
    assert (rows["`WORLD_SIZE`"], rows["`SEED`"]) == (("1", "2"), (None, "7"))
    bare = make_run(rollouts=changed(batch, 99), events=events)
    assert "device" not in shown(evidence(TOOL, bare))


def test_without_rollouts_the_signals_are_left(make_run: MakeRun, evidence: Read) -> None:
    run = make_run(signals={"reward_mean": [1, 1, 3, 3]}, events=[("resume", 3, "")])
    found = evidence(TOOL, run)
    assert found.tables[0].columns == ("of", "before (up to 2)", "after (from 3)")
    assert shown(found) == {"reward": (1.0, 3.0)}


def test_the_last_few_changes_are_shown(make_run: MakeRun, evidence: Read) -> None:
    signals = {"reward_mean": np.arange(40.0)}
    events = [("resume", step, "") for step in (5, 10, 15, 20, 25, 99)]
    found = evidence(TOOL, make_run(signals=signals, events=events))
    assert [t.title for t in found.tables] == [
        f"both sides of step {s}: resume" for s in (15, 20, 25)
    ]
    assert (found.metrics or {})["n_resumes"] == 6


def test_a_run_without_changes_has_no_table(
    make_run: MakeRun, batch: MakeBatch, evidence: Read
) -> None:
    found = evidence(TOOL, make_run(rollouts=changed(batch, 99)))
    assert not found.tables
    assert (found.metrics or {})["last_step"] is None
