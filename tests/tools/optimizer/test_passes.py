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


def ledger_of(updates: int, at: int, **fields: Any) -> Microbatch:
    """Ratios that move further from 1 with each update."""
    return Microbatch(
        ratio_p50=1 + 0.01 * at,
        ratio_p95=1 + 0.05 * at,
        ratio_p99=1 + 0.1 * at,
        ratio_max=1 + 0.2 * at,
        clip_low_share=0.02 * at,
        clip_high_share=0.03 * at,
        kl_old=0.001 * at,
        **fields,
    )


@pytest.mark.parametrize("inside", [False, True], ids=["a step each", "all in one step"])
def test_a_ledger_alone(make_run: MakeRun, measure: Measure, inside: bool) -> None:
    """Three updates over each of four batches; nothing of ratios is logged, and no tokens kept."""
    if inside:
        steps = [
            FlightStep(s, microbatches=tuple(ledger_of(3, u, update=u) for u in range(3)))
            for s in range(1, 5)
        ]
    else:
        steps = [
            FlightStep(s, first_pass=s % 3 == 1, microbatches=(ledger_of(3, (s - 1) % 3),))
            for s in range(1, 13)
        ]
    kept = {step.step: step for step in steps}
    flight = Flight(list(kept), kept.__getitem__)
    settings = {} if inside else {"updates_per_batch": 3}
    found = measure(TOOL, make_run(config=settings, flight=flight))
    assert (found["updates_per_batch"], found["n_batches"], found["from_ledger"]) == (3, 4, True)
    assert (found["clip_second"], found["clip_last"]) == (0.05, 0.1)
    assert (found["clip_low_last"], found["clip_high_last"]) == (0.04, 0.06)
    assert (found["ratio_p50_last"], found["ratio_p95_last"]) == (1.02, 1.1)
    assert (found["ratio_max_last"], found["kl_old_last"]) == (1.4, 0.002)
    assert found["p99_last"] == pytest.approx(np.log(1.2), abs=1e-6)
    assert found["tail_last"] == pytest.approx(np.log(1.4), abs=1e-6)


def test_micro_batches_weigh_by_their_tokens(make_run: MakeRun, measure: Measure) -> None:
    parts = [
        Microbatch(update=u, n_tokens=n, clip_low_share=low * u, clip_high_share=0.0)
        for u in (0, 1)
        for n, low in ((30, 0.1), (10, 0.5), (0, 1.0))
    ]
    kept = {s: FlightStep(s, microbatches=tuple(parts)) for s in (1, 2, 3)}
    run = make_run(flight=Flight(list(kept), kept.__getitem__))
    assert measure(TOOL, run)["clip_low_last"] == pytest.approx(0.2)


def test_what_is_logged_comes_before_the_ledger(make_run: MakeRun, measure: Measure) -> None:
    kept = {
        s: FlightStep(s, first_pass=s % 3 == 1, microbatches=(ledger_of(3, (s - 1) % 3),))
        for s in range(1, 13)
    }
    run = make_run(
        signals={"clip_frac_total": [0.0, 0.3, 0.4] * 4},
        config={"updates_per_batch": 3},
        flight=Flight(list(kept), kept.__getitem__),
    )
    found = measure(TOOL, run)
    assert (found["clip_last"], found["from_ledger"], found["clip_low_last"]) == (0.4, False, 0.04)


def test_too_few_batches_in_the_ledger(make_run: MakeRun, missing: Callable[..., str]) -> None:
    parts = tuple(ledger_of(3, u, update=u) for u in range(3))
    kept = {s: FlightStep(s, microbatches=parts) for s in (1, 2)}
    assert "logged" in missing(TOOL, make_run(flight=Flight(list(kept), kept.__getitem__)))
