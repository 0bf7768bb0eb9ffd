"""Rows that name no weights, or weights that the trainer did not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight, FlightStep
from firstbad.tools.run import Capture, RolloutBatch, Run

TOOL = "check_row_origin"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Batch = Callable[..., RolloutBatch]
NONE = float("nan")


def run_of(
    make_run: MakeRun, batch: Batch, lags: dict[int, list[float] | None], captures: Any = ()
) -> Run:
    """The trainer's version is the step; rows are as many updates behind as told."""
    batches = [
        batch(
            s,
            rewards={"a": [0.0] * len(lag or [0, 0])},
            policy_version=None if lag is None else s - np.array(lag, float),
        )
        for s, lag in lags.items()
    ]
    flight = Flight(list(lags), lambda step: FlightStep(step, first_pass=True, policy_version=step))
    return make_run(rollouts=batches, flight=flight, captures=captures)


@pytest.mark.parametrize(
    ("lags", "unnamed", "newer", "first", "last_good"),
    [
        ({1: [0, 0], 2: [1, 0]}, 0, 0, None, None),
        ({1: [0, 0], 2: [0, NONE]}, 0.25, 0, 2, 1),
        ({1: [0, 0], 2: [0, 0], 3: None}, 1 / 3, 0, 3, 2),  # no row of the step names any
        ({1: [0, -2], 2: [0, 0]}, 0, 0.25, 1, None),
        ({1: [0, 0], 2: [NONE, -2]}, 0.25, 0.25, 2, 1),
    ],
)
def test_rows_of_unknown_origin(
    lags: dict[int, list[float] | None], unnamed: float, newer: float, first: int | None,
    last_good: int | None, make_run: MakeRun, batch: Batch, measure: Measure,
) -> None:  # fmt: skip
    m = measure(TOOL, run_of(make_run, batch, lags))
    assert (m["unnamed_share"], m["newer_share"]) == pytest.approx((unnamed, newer), abs=1e-6)
    assert m["unknown_share"] == pytest.approx(unnamed + newer, abs=1e-6)
    assert (m["first_bad_step"], m["last_good_step"]) == (first, last_good)
    assert m["from_start"] is (first == 1)
    assert m["numbered_otherwise"] is False


def test_how_far_and_how_many_since(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    m = measure(TOOL, run_of(make_run, batch, {1: [0, 0], 2: [-1, -4], 3: [NONE, 0]}))
    assert (m["ahead_most"], m["unknown_since"]) == (4, 0.75)


def test_two_ways_to_count(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    m = measure(TOOL, run_of(make_run, batch, {1: [-1, -1], 2: [-1, -1]}))
    assert (m["numbered_otherwise"], m["unknown_share"], m["ahead_most"]) == (True, 0, 1)
    assert m["first_bad_step"] is None
    m = measure(TOOL, run_of(make_run, batch, {1: [-1, -1], 2: [-2, -2]}))
    assert (m["numbered_otherwise"], m["unknown_share"]) == (False, 1)


def test_what_log_probs_say(
    make_run: MakeRun, batch: Batch, capture: Callable[..., Capture], measure: Measure
) -> None:
    new = np.full((3, 8), -1.0)
    engine = np.array([[-1.3] * 8, [-1.05] * 8, [-1.5] * 8])
    dumped = capture(
        7,
        token_id=np.full((3, 8), 5),
        source=np.full((3, 8), 3),
        logp_new=new,
        logp_engine=engine,
    )
    m = measure(TOOL, run_of(make_run, batch, {7: [NONE, 0, -2]}, [dumped]))
    assert m["n_tokens"] == 16
    assert (m["difference"], m["difference_others"]) == pytest.approx((0.4, 0.05))
    assert m["over_others"] == pytest.approx(8)


def test_where_no_row_names_any(
    make_run: MakeRun, batch: Batch, missing: Callable[..., str]
) -> None:
    assert "policy version" in missing(TOOL, run_of(make_run, batch, {1: None, 2: None}))


@pytest.mark.parametrize(("early", "there"), [(-1.3, True), (-1.1, False)])
def test_a_difference_from_before_the_first_update(
    early: float, there: bool, make_run: MakeRun, batch: Batch,
    capture: Callable[..., Capture], measure: Measure,
) -> None:  # fmt: skip
    """No other weights existed at step 1: what differs by then is how they are computed with."""
    dumps = [
        capture(
            step,
            token_id=np.full((2, 8), 5),
            source=np.full((2, 8), 3),
            logp_new=np.full((2, 8), -1.0),
            logp_old=np.full((2, 8), -1.0),
            logp_engine=np.array([[-1.0] * 8, [there_at] * 8]),
        )
        for step, there_at in ((1, early), (7, -1.4))
    ]
    lags: dict[int, list[float] | None] = {1: [0, NONE], 7: [0, NONE]}
    m = measure(TOOL, run_of(make_run, batch, lags, dumps))
    assert m["before_updates"] == pytest.approx(-1 - early, abs=1e-6)
    assert m["there_before_updates"] is there
    late = measure(TOOL, run_of(make_run, batch, {7: [0, NONE]}, dumps[1:]))
    assert (late["before_updates"], late["there_before_updates"]) == (None, False)
