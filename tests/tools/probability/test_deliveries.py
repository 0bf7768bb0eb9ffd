"""The ledger of weight deliveries: each fault of it, and what counts as none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight, Sync, SyncedTensor
from firstbad.tools.run import Capture, Run

TOOL = "check_deliveries"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
WHOLE = Sync(
    0,
    version=4,
    engine_version=4,
    tensors=(SyncedTensor("a", "1", "1"), SyncedTensor("b", "2", "2")),
    n_sent=2,
    n_expected=2,
    adapter="policy",
    engine_adapter="policy",
    cache_cleared=True,
)
FAULTS: dict[str, dict[str, Any]] = {
    "n_version_behind": {"engine_version": 3},
    "n_digest_differs": {"tensors": (SyncedTensor("a", "1", "9"),)},
    "n_tensor_missing": {"tensors": (SyncedTensor("a", "1", "1"), SyncedTensor("b", "2", None))},
    "n_short": {"n_sent": 1},
    "n_adapter_unnamed": {"engine_adapter": None},
    "n_cache_kept": {"cache_cleared": False},
}


def run_of(make_run: MakeRun, syncs: list[Sync], last: int, **fields: Any) -> Run:
    signals = {"loss": np.zeros(last)}
    return make_run(signals=signals, flight=Flight(syncs=syncs), **fields)


def ledger(bad: set[int], fault: dict[str, Any], steps: int = 10) -> list[Sync]:
    return [replace(WHOLE, step=s, **(fault if s in bad else {})) for s in range(steps)]


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_counted_and_dated(name: str, make_run: MakeRun, measure: Measure) -> None:
    m = measure(TOOL, run_of(make_run, ledger({6, 7, 8, 9}, FAULTS[name]), 10))
    counts = {key: m[key] for key in FAULTS}
    assert counts == {key: 4 if key == name else 0 for key in FAULTS}
    # What was delivered after step 6 is sampled from in step 7.
    assert (m["n_bad"], m["last_good_step"], m["first_bad_step"]) == (4, 6, 7)
    assert (m["from_start"], m["all_bad"], m["last_bad_step"]) == (False, False, None)


def test_whole_deliveries(make_run: MakeRun, measure: Measure) -> None:
    m = measure(TOOL, run_of(make_run, ledger(set(), {}), 10))
    assert (m["n_deliveries"], m["n_bad"], m["first_bad_step"]) == (10, 0, None)
    assert (m["n_digest_compared"], m["overdue_steps"]) == (10, 0)


def test_what_was_not_recorded_is_not_wrong(make_run: MakeRun, measure: Measure) -> None:
    bare = [Sync(s, version=s) for s in range(5)]
    m = measure(TOOL, run_of(make_run, bare, 5))
    assert (m["n_bad"], m["n_digest_compared"]) == (0, 0)


def test_a_fault_that_ends(make_run: MakeRun, measure: Measure) -> None:
    m = measure(TOOL, run_of(make_run, ledger({0, 1, 2}, FAULTS["n_short"]), 10))
    assert (m["first_bad_step"], m["last_bad_step"], m["from_start"]) == (1, 3, True)


@pytest.mark.parametrize(("last", "overdue"), [(10, 0), (12, 1), (40, 29)])
def test_deliveries_that_stop(last: int, overdue: int, make_run: MakeRun, measure: Measure) -> None:
    m = measure(TOOL, run_of(make_run, ledger(set(), {}), last))
    assert m["overdue_steps"] == overdue


def test_rare_deliveries_are_not_overdue(make_run: MakeRun, measure: Measure) -> None:
    syncs = [replace(WHOLE, step=s) for s in (0, 8, 16)]
    assert measure(TOOL, run_of(make_run, syncs, 24))["overdue_steps"] == 0


def test_what_the_engine_makes_of_it(
    make_run: MakeRun, measure: Measure, capture: Callable[..., Capture]
) -> None:
    """Only captures under a bad delivery are read: of steps after it."""

    def dump(step: int, gap: float) -> Capture:
        logp = np.full((4, 5), -1.0)
        return capture(
            step,
            token_id=np.full((4, 5), 5),
            source=np.full((4, 5), 3),
            logp_old=logp,
            logp_ref=logp - 0.5,
            logp_engine=logp + gap,
        )

    syncs = ledger({6, 7, 8, 9}, FAULTS["n_digest_differs"])
    captures = [dump(3, 0.9), dump(6, 0.8), dump(7, 0.25), dump(9, 0.35)]
    m = measure(TOOL, run_of(make_run, syncs, 10, captures=captures))
    assert m["n_tokens_since"] == 40
    assert m["difference_since"] == pytest.approx(0.3)
    assert m["moved_since"] == pytest.approx(0.5)


def test_no_ledger(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "syncs.jsonl" in missing(TOOL, make_run())
