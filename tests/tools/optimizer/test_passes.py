"""Ratios by how often a batch was updated before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight, FlightStep, Microbatch
from firstbad.tools.run import Run

TOOL = "measure_passes"
SETTINGS = {
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
    "num_iterations": 4,
    "logging_steps": 1,
}

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def test_figures_by_hand(make_run: MakeRun, measure: Measure) -> None:
    # Four updates over each batch; ratio e and e^-2 in the last: the largest log-ratio is 2.
    run = make_run(
        signals={
            "clip_frac_total": [0.0, 0.05, 0.1, 0.2] * 5,
            "ratio_max": [1.0, 1.5, 2.0, np.e] * 5,
            "ratio_min": [1.0, 1 / 1.2, 0.5, np.exp(-2.0)] * 5,
        },
        config=SETTINGS,
    )
    found = measure(TOOL, run)
    assert (found["updates_per_batch"], found["n_batches"]) == (4, 5)
    assert (found["clip_second"], found["clip_last"]) == (0.05, 0.2)
    assert found["tail_second"] == pytest.approx(np.log(1.5), abs=1e-6)
    assert found["tail_last"] == pytest.approx(2.0)


def test_after_a_resume_batches_begin_anew(make_run: MakeRun, measure: Measure) -> None:
    # The resume behind step 6 cuts the second batch short: it is left out.
    clips = [0.0, 0.1, 0.2, 0.3, 0.0, 0.1] + [0.0, 0.1, 0.2, 0.3] * 3
    run = make_run(
        signals={"clip_frac_total": clips}, config=SETTINGS, events=[("resume", 7, "resumed")]
    )
    found = measure(TOOL, run)
    assert (found["n_batches"], found["clip_last"], found["tail_last"]) == (4, 0.3, None)


def test_one_update_per_batch_has_nothing_to_measure(make_run: MakeRun, measure: Measure) -> None:
    run = make_run(
        signals={"clip_frac_total": [0.0] * 20}, config={**SETTINGS, "num_iterations": 1}
    )
    found = measure(TOOL, run)
    assert (found["updates_per_batch"], found["n_batches"], found["clip_last"]) == (1, 0, None)


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    clips = {"clip_frac_total": [0.0] * 20}
    assert "logged" in missing(TOOL, make_run(config=SETTINGS))
    assert "how many updates" in missing(TOOL, make_run(signals=clips))
    assert "not known" in missing(
        TOOL, make_run(signals=clips, config={**SETTINGS, "logging_steps": 4})
    )
    assert "fewer than 3" in missing(
        TOOL, make_run(signals={"clip_frac_total": [0.0] * 8}, config=SETTINGS)
    )


def test_the_ledger_of_a_recorder(make_run: MakeRun, measure: Measure) -> None:
    # It tells which updates are the first, and P99 of each micro-batch: the larger one counts.
    kept = {
        step: FlightStep(
            step,
            first_pass=step % 4 == 1,
            microbatches=tuple(
                Microbatch(ratio_p99=float(np.exp(x * ((step - 1) % 4)))) for x in (0.1, 0.2)
            ),
        )
        for step in range(1, 21)
    }
    run = make_run(
        signals={"clip_frac_total": [0.0, 0.1, 0.1, 0.2] * 5},
        config={"updates_per_batch": 4},
        flight=Flight(list(kept), kept.__getitem__),
    )
    found = measure(TOOL, run)
    assert (found["n_batches"], found["clip_last"]) == (5, 0.2)
    assert (found["p99_second"], found["p99_last"]) == (pytest.approx(0.2), pytest.approx(0.6))
