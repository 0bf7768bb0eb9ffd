"""Steps without a weight delivery: which are a hole, and what log-probs say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight, FlightStep, Sync
from firstbad.tools.run import Capture, RolloutBatch, Run, Signal

TOOL = "find_delivery_gaps"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
DAILY = list(range(30))


def run_of(make_run: MakeRun, syncs: list[int], last: int = 30, **fields: Any) -> Run:
    flight = Flight(
        range(1, last + 1),
        lambda step: FlightStep(step, first_pass=True, policy_version=step),
        syncs=[Sync(s) for s in syncs],
    )
    signals = fields.pop("signals", {"loss": np.zeros(last)})
    return make_run(signals=signals, flight=flight, **fields)


@pytest.mark.parametrize(
    ("syncs", "missed", "first", "last"),
    [
        (DAILY, 0, None, None),
        # None after step 10 to 14: steps 11 to 15 are sampled from the weights of step 9.
        ([s for s in DAILY if not 10 <= s < 15], 5, 11, 15),
        ([s for s in DAILY if s != 10], 1, 11, 11),
        (DAILY[:20], 10, 21, None),  # they stop
        (list(range(0, 30, 5)), 0, None, None),
        ([0, 5, 10, 25], 0, None, None),  # too few to tell
        ([0, 3, 6, 9, 12, 24, 27], 3, 16, 24),
        ([*DAILY[:15], 19, 23, 27], 0, None, None),  # rarer from there on
    ],
)
def test_the_hole(
    syncs: list[int], missed: int, first: int | None, last: int | None, make_run: MakeRun,
    measure: Measure, missing: Callable[..., str],
) -> None:  # fmt: skip
    run = run_of(make_run, syncs)
    if len(syncs) < 5:
        assert "at least 5" in missing(TOOL, run)
        return
    m = measure(TOOL, run)
    assert (m["n_missed"], m["first_bad_step"], m["last_bad_step"]) == (missed, first, last)
    assert m["last_good_step"] == (None if first is None else first - 1)
    assert m["at_resume"] is False


def test_irregular_deliveries(make_run: MakeRun, measure: Measure) -> None:
    m = measure(TOOL, run_of(make_run, [0, 1, 2, 7, 8, 13, 14, 15, 21]))
    assert m["regular_share"] == 0.625  # distances 1 1 5 1 5 1 1 6


def test_steps_that_are_not_on_record_are_no_hole(
    make_run: MakeRun, make_signal: Callable[..., Signal], measure: Measure
) -> None:
    syncs = [s for s in DAILY if not 10 <= s < 15]
    logged = np.array([s for s in range(1, 31) if not 11 <= s <= 15])
    signals = {"loss": make_signal("loss", np.zeros(25))}
    signals["loss"] = replace(signals["loss"], steps=logged)
    assert measure(TOOL, run_of(make_run, syncs, signals=signals))["n_missed"] == 0


@pytest.mark.parametrize(
    ("first", "at_resume", "n_steps"), [(10, False, 0), (11, True, 1), (14, True, 4)]
)
def test_the_first_delivery_after_a_resume(
    first: int, at_resume: bool, n_steps: int, make_run: MakeRun, measure: Measure
) -> None:
    """The resumed run begins with step 11, whose rollouts need a delivery after step 10."""
    syncs = [s for s in DAILY if s < 10 or s >= first]
    m = measure(TOOL, run_of(make_run, syncs, events=[("resume", 11, "")]))
    assert (m["at_resume"], m["n_steps"]) == (at_resume, n_steps)
    assert m["resume_step"] == m["first_bad_step"] == (11 if at_resume else None)


def dump(capture: Callable[..., Capture], step: int, gap: float) -> Capture:
    logp = np.full((4, 5), -1.0)
    return capture(
        step,
        token_id=np.full((4, 5), 5),
        source=np.full((4, 5), 3),
        logp_old=logp,
        logp_engine=logp + gap,
    )


def test_what_the_engine_says_in_the_hole(
    make_run: MakeRun, measure: Measure, capture: Callable[..., Capture]
) -> None:
    syncs = [s for s in DAILY if not 10 <= s < 15]
    captures = [dump(capture, s, g) for s, g in ((5, 0.02), (11, 0.1), (15, 0.3), (16, 0.02))]
    m = measure(TOOL, run_of(make_run, syncs, captures=captures))
    assert m["n_tokens"] == 40
    assert (m["difference_in"], m["difference_out"]) == pytest.approx((0.2, 0.02))
    assert m["over_outside"] == pytest.approx(10)


def test_what_the_log_says_where_nothing_was_captured(make_run: MakeRun, measure: Measure) -> None:
    logged = np.full(30, 0.01)
    logged[10:15] = 0.09
    syncs = [s for s in DAILY if not 10 <= s < 15]
    m = measure(TOOL, run_of(make_run, syncs, signals={"logprob_diff_mean": logged}))
    assert (m["n_tokens"], m["difference_in"], m["difference_out"]) == (0, 0.09, 0.01)


def test_rows_that_claim_the_older_weights(
    make_run: MakeRun, measure: Measure, batch: Callable[..., RolloutBatch]
) -> None:
    syncs = [s for s in DAILY if not 10 <= s < 15]
    lags = {10: [0, 0], 11: [1, 1], 15: [5, 0]}
    batches = [
        batch(s, rewards={"a": [0.0, 0.0]}, policy_version=s - np.array(lag))
        for s, lag in lags.items()
    ]
    m = measure(TOOL, run_of(make_run, syncs, rollouts=batches))
    assert m["share_older"] == 0.75
    assert measure(TOOL, run_of(make_run, syncs))["share_older"] is None


def test_no_ledger(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "0 deliveries" in missing(TOOL, make_run())
