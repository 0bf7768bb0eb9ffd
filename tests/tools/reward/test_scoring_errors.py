"""Failed scoring calls whose rows got a score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "count_scoring_errors"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
ALARM = "ValueError: signal only works in main thread"


def calls(batch: MakeBatch, scores: list[float], failed: Callable[[int], list[bool]]) -> list[Any]:
    return [
        batch(
            s,
            rewards={"correct": scores},
            errors={"correct": [ALARM if f else None for f in failed(s)]},
        )
        for s in range(1, 41)
    ]


def test_an_alarm_in_a_worker_thread_becomes_0(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """The wrapper returns 0 for whatever raises; from step 21 on two of four calls do."""
    rows = calls(batch, [0, 0, 1, 0], lambda s: [s > 20, s > 20, False, False])
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["n_rows"], found["n_errors"], found["scored_share"]) == (160, 40, 1)
    assert (found["share"], found["share_before"]) == (0.5, 0)
    assert (found["error_score"], found["one_score"]) == (0, 1)
    assert found["one_score_others"] == pytest.approx(80 / 120, abs=1e-6)
    assert (found["last_good_step"], found["first_bad_step"]) == (20, 21)


def test_the_same_completions_in_the_main_thread(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = calls(batch, [1, 0, 1, 0], lambda s: [False] * 4)
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["n_errors"], found["share"], found["first_bad_step"]) == (0, 0, None)


def test_calls_that_are_tried_again(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    rows = calls(batch, [1, 0, 1, 0], lambda s: [s > 20, s > 20, False, False])
    assert measure(TOOL, make_run(rollouts=rows))["one_score"] == 0.5


def test_an_error_without_a_score_is_no_outage(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = calls(batch, [float("nan"), 0, 1, 0], lambda s: [True, False, False, False])
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["n_errors"], found["scored_share"], found["share"]) == (40, 0, 0)


def test_without_records(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    assert "no errors" in missing(TOOL, make_run(rollouts=[batch(rewards={"correct": [1]})]))
