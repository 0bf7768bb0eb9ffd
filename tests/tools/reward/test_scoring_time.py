"""Time of scoring, by single calls and by logged phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import RolloutBatch, Run, Signals

TOOL = "measure_scoring_time"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def timed(batch: MakeBatch, seconds: Callable[[int], list[float]]) -> list[Any]:
    return [
        batch(s, rewards={"correct": [1, 0, 1, 0]}, latency_seconds={"correct": seconds(s)})
        for s in range(1, 41)
    ]


def test_calls_that_become_slow(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Four calls of 0.1 s, and from step 21 on of 1.5 s: 0.4 and 6 s a step; steps took 2, now 8 s.
    rows = timed(batch, lambda s: [0.1 if s <= 20 else 1.5] * 4)
    signals = {"step_time": [2.0] * 20 + [8.0] * 20}
    found = measure(TOOL, make_run(rollouts=rows, signals=signals))
    assert (found["seconds_before"], found["seconds_after"]) == (pytest.approx(0.4), 6.0)
    assert found["factor"] == pytest.approx(15)
    assert found["share_of_step"] == 0.75
    assert found["explains"] == pytest.approx(5.6 / 6)
    assert (found["last_good_step"], found["first_bad_step"]) == (20, 21)
    assert (found["of_calls"], found["stuck_share"]) == (True, 0)


def test_calls_that_run_side_by_side(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    """Four calls of 1.5 s do not fit into a step of 2 s one after another: the longest counts."""
    rows = timed(batch, lambda s: [1.5] * 4)
    found = measure(TOOL, make_run(rollouts=rows, signals={"step_time": [2.0] * 40}))
    assert (found["seconds_all"], found["share_of_step"]) == (1.5, 0.75)
    assert (found["factor"], found["first_bad_step"]) == (1, None)


def test_one_call_that_hangs(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    rows = timed(batch, lambda s: [0.01, 0.01, 0.01, 5.0 if s % 4 == 0 else 0.01])
    found = measure(TOOL, make_run(rollouts=rows, signals={"step_time": [6.0] * 40}))
    assert found["stuck_share"] == 0.25


def test_steps_that_take_longer_for_another_reason(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = timed(batch, lambda s: [0.1] * 4)
    signals = {"step_time": [2.0] * 20 + [8.0] * 20}
    found = measure(TOOL, make_run(rollouts=rows, signals=signals))
    assert (found["factor"], found["explains"], found["first_bad_step"]) == (1, None, None)


@pytest.mark.parametrize(
    "key",
    [
        "phase_seconds/reward",
        "timing_s/reward",
        "profiling/Time taken: GRPOTrainer._calculate_rewards",
    ],
)
def test_a_logged_phase(
    make_run: MakeRun, make_signal: Callable[..., Any], measure: Measure, key: str
) -> None:
    run = make_run(signals={"step_time": [2.0] * 20 + [8.0] * 20})
    phase = make_signal(key, [0.4] * 20 + [6.0] * 20)
    run.signals = Signals(run.signals.known, {key: phase, "timing_s/gen": phase})
    found = measure(TOOL, run)
    assert (found["of_calls"], found["first_bad_step"], found["stuck_share"]) == (False, 21, None)


def test_without_times(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "neither times" in missing(TOOL, make_run(signals={"step_time": [2.0] * 40}))
