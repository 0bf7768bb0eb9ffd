"""Age of the weights that sampled the rows, and which log-probs fit rows that are old."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight, FlightStep
from firstbad.tools.run import Capture, Config, RolloutBatch, Run

TOOL = "check_policy_lag"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Batch = Callable[..., RolloutBatch]


def run_of(
    make_run: MakeRun, batch: Batch, lags: dict[int, list[float]], captures: Any = (), **config: Any
) -> Run:
    """The trainer's version is the step; rows are as many updates behind as told."""
    batches = [
        batch(s, rewards={"a": [0.0] * len(lag)}, policy_version=s - np.array(lag))
        for s, lag in lags.items()
    ]
    flight = Flight(list(lags), lambda step: FlightStep(step, first_pass=True, policy_version=step))
    return make_run(rollouts=batches, flight=flight, captures=captures, config=config)


def test_lag_against_what_is_allowed(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    run = run_of(make_run, batch, {10: [0, 1], 20: [2, 3], 30: [0, 4]}, max_staleness=2)
    m = measure(TOOL, run)
    assert (m["allowed"], m["largest"], m["mean"]) == (2, 4, pytest.approx(10 / 6))
    assert m["share_over"] == pytest.approx(2 / 6)
    assert m["share_lagging"] == pytest.approx(4 / 6)
    assert (m["last_good_step"], m["first_bad_step"]) == (10, 20)


def test_within_the_allowed_lag(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    m = measure(TOOL, run_of(make_run, batch, {1: [4, 4], 2: [3, 4]}, max_staleness=4))
    assert (m["share_over"], m["first_bad_step"]) == (0.0, None)


def test_rows_without_a_version_are_left_out(
    make_run: MakeRun, batch: Batch, measure: Measure
) -> None:
    run = run_of(make_run, batch, {1: [0, float("nan")], 2: [4, float("nan")]}, max_staleness=2)
    m = measure(TOOL, run)
    assert (m["n_rows"], m["largest"], m["share_over"], m["first_bad_step"]) == (2, 4, 0.5, 2)


def test_a_nested_setting_counts(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    run = run_of(make_run, batch, {1: [4]})
    nested = replace(run, config=Config({"trainer.async.max_staleness": 3}))
    assert measure(TOOL, nested)["allowed"] == 3


def test_steps_of_several_updates_are_as_many_versions(
    make_run: MakeRun, batch: Batch, measure: Measure
) -> None:
    run = run_of(make_run, batch, {8: [4], 12: [5]}, max_staleness=1, updates_per_batch=4)
    m = measure(TOOL, run)
    assert (m["allowed"], m["share_over"], m["first_bad_step"]) == (4, 0.5, 12)


def test_no_setting_leaves_the_growth(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    m = measure(TOOL, run_of(make_run, batch, {1: [0], 2: [0], 3: [1], 4: [6], 5: [9], 6: [9]}))
    assert (m["allowed"], m["share_over"]) == (None, None)
    assert (m["early"], m["late"], m["over_early"]) == (0, 9, 9)
    assert m["first_bad_step"] == 4


def test_later_passes_are_not_looked_at(
    make_run: MakeRun, batch: Batch, missing: Callable[..., str]
) -> None:
    run = run_of(make_run, batch, {5: [1, 1]})
    later = replace(
        run, flight=Flight([5], lambda s: FlightStep(s, first_pass=False, policy_version=s))
    )
    assert "policy version" in missing(TOOL, later)


@pytest.mark.parametrize(
    ("old", "fits", "is_new", "copied"),
    [("sampled", 0.01, 0.31, False), ("present", 0.3, 0.0, False), ("engine", 0.0, 0.3, True)],
)
def test_which_log_probs_fit_old_rows(
    old: str, fits: float, is_new: float, copied: bool, make_run: MakeRun, batch: Batch,
    capture: Callable[..., Capture], measure: Measure,
) -> None:  # fmt: skip
    new = np.full((2, 8), -1.0)
    engine = np.array([[-1.3] * 8, [-1.05] * 8])
    olds = {"sampled": engine - 0.01, "present": new, "engine": engine}
    dumped = capture(
        7,
        token_id=np.full((2, 8), 5),
        source=np.full((2, 8), 3),
        logp_new=new,
        logp_old=olds[old],
        logp_engine=engine,
    )
    run = run_of(make_run, batch, {7: [3, 0]}, [dumped], max_staleness=4)  # none is too old
    m = measure(TOOL, run)
    assert m["first_bad_step"] == (7 if old == "present" else None)
    assert (m["n_lagging_tokens"], m["lagging_difference"]) == (8, pytest.approx(0.3))
    assert m["current_difference"] == pytest.approx(0.05)
    assert m["old_fits_difference"] == pytest.approx(fits)
    assert m["old_is_new_difference"] == pytest.approx(is_new)
    assert m["old_copied"] is copied


@pytest.mark.parametrize(
    ("settings", "corrected"),
    [({}, None), ({"use_tis": False}, False), ({"use_tis": True}, True),
     ({"algorithm.rollout_is": "token"}, True), ({"rollout_is": None}, False)],
)  # fmt: skip
def test_whether_a_correction_is_declared(
    settings: dict[str, Any], corrected: bool | None, make_run: MakeRun, batch: Batch,
    measure: Measure,
) -> None:  # fmt: skip
    assert measure(TOOL, run_of(make_run, batch, {1: [1]}, **settings))["corrected"] is corrected
