"""What the user's own judge scored, and how other tools use it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import RolloutBatch, Run

TOOL = "read_judge"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
nan = float("nan")


def test_hand_counted_answers(
    make_run: MakeRun, batch: MakeBatch, judged: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    rows = [batch(s, rewards={"score": [1, 0, 1, 0]}) for s in (1, 2, 3)]
    run = judged(make_run(rollouts=rows), lambda b: [1.0, 0.25, nan, 0.0], twice=2, crashes=1)
    found = evidence(TOOL, run)
    assert found.origin == "probe"
    assert [s.kind for s in found.sources] == ["judge"]
    assert found.metrics is not None
    told = {k: v for k, v in found.metrics.items() if v}
    assert told == {
        "n_asked": 12,
        "n_scored": 9,
        "share_scored": 0.75,
        "n_missing": 3,
        "n_twice": 2,
        "n_crashes": 1,
        "score_highest": 1.0,
        "score_first": pytest.approx(1.25 / 3, abs=1e-6),
        "score_last": pytest.approx(1.25 / 3, abs=1e-6),
    }
    assert "9 of 12 rows" in found.summary
    assert "2 given twice" in found.summary


def test_without_a_judge(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "no judge was given" in missing(TOOL, make_run())


def dead(d: SimpleNamespace) -> None:
    if d.step >= ONSET:
        d.rewards["correct"][:] = 0


def own(batch: RolloutBatch) -> Any:
    """A judge on its own scale: -3 for wrong answers and 2.5 for right ones."""
    assert batch.gold is not None
    pairs = zip(batch.gold, batch.completions, strict=True)
    return [
        2.5 if f" {gold} " in f" {text.replace('</answer>', ' ')} " else -3.0
        for gold, text in pairs
    ]


def test_rejudging_by_it_dates_a_dead_verifier(
    simulate: MakeRun, judged: MakeRun, measure: Measure
) -> None:
    found = measure("rejudge", judged(simulate(1, edit=dead), own))
    assert (found["by_command"], found["calibrated"]) == (True, True)
    assert (found["first_bad_step"], found["scored_constant"]) == (ONSET, True)
    assert found["rejected_right_share"] == 1


def test_rejudging_needs_no_gold_answers(
    simulate: MakeRun, judged: MakeRun, measure: Measure
) -> None:
    run = judged(simulate(1, edit=dead), own)
    batches = {b.step: b for b in run.rollouts.batches()}
    for b in batches.values():
        object.__setattr__(b, "gold", None)
    assert measure("rejudge", run)["first_bad_step"] == ONSET


def test_a_judge_that_differs_from_the_start_is_not_bent_to_the_reward(
    simulate: MakeRun, judged: MakeRun, measure: Measure
) -> None:
    """Every tagged answer is scored right from the first step on; the judge says otherwise."""

    def lenient(d: SimpleNamespace) -> None:
        d.rewards["correct"] = np.maximum(d.rewards["correct"], d.rewards["format"])

    found = measure("rejudge", judged(simulate(1, edit=lenient), own))
    assert not found["calibrated"]
    assert found["one_sided"] == 1
    assert found["rejected_right"] == 0
    assert found["accepted_wrong_share"] > 0.8
    assert found["from_start"]
