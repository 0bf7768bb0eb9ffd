from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.errors import NoData
from firstbad.tools.flight import Flight, FlightStep
from firstbad.tools.run import Run
from firstbad.tools.window.reproduction import classify_reproduction  # "classify_reproduction"

Make = Callable[..., Run]


@pytest.fixture
def failing(make_run: Make) -> Callable[..., Run]:
    def build(at: int | None, *, shift: int = 0, seed: int = 0) -> Run:
        """A run whose KL jumps at a step; step s has batch s + shift."""
        kl = 0.02 + 0.001 * np.random.default_rng(seed).normal(size=60)
        if at is not None:
            kl[at - 1 :] += 3.0
        steps: dict[int, Any] = {s: FlightStep(s, batch=f"b{s + shift}") for s in range(1, 61)}
        found = make_run(signals={"kl_ref": kl})
        return replace(found, flight=Flight(list(steps), steps.__getitem__), ref=f"m:{seed}")

    return build


def classes(run: Run, *others: Run) -> tuple[bool | None, bool | None, bool | None]:
    m = classify_reproduction(replace(run, replays=others)).metrics
    return m.same_batch, m.same_step, m.random


def test_the_same_samples_at_another_step(failing: Callable[..., Run]) -> None:
    assert classes(failing(30), failing(40, shift=-10, seed=1)) == (True, False, False)


def test_the_same_step_with_other_samples(failing: Callable[..., Run]) -> None:
    assert classes(failing(30), failing(31, shift=7, seed=1)) == (False, True, False)


def test_anywhere(failing: Callable[..., Run]) -> None:
    assert classes(failing(30), failing(45, shift=7, seed=1)) == (False, False, True)


def test_runs_in_one_order_part_nothing_and_say_so(failing: Callable[..., Run]) -> None:
    run = replace(failing(30), replays=(failing(30, seed=1),))
    m = classify_reproduction(run).metrics
    assert (m.same_batch, m.same_step, m.batches_differ_at_step) == (True, True, False)


def test_a_rerun_that_holds_leaves_it_open_and_two_make_it_random(
    failing: Callable[..., Run],
) -> None:
    good, better = failing(None, seed=1), failing(None, seed=2)
    assert classes(failing(30), good) == (None, None, False)
    assert classes(failing(30), good, better) == (None, None, True)


def test_runs_that_hold_have_no_class(failing: Callable[..., Run]) -> None:
    m = classify_reproduction(replace(failing(None), replays=(failing(None, seed=1),))).metrics
    assert (m.n_failed, m.same_step, m.random, m.step_spread) == (0, None, None, None)


def test_a_rerun_too_short_to_fail_counts_as_holding(
    failing: Callable[..., Run], make_run: Make
) -> None:
    short = make_run(signals={"kl_ref": [0.1] * 5})
    m = classify_reproduction(replace(failing(30), replays=(short,))).metrics
    assert (m.n_runs, m.n_failed) == (2, 1)


def test_a_small_drift_of_the_signal_is_not_the_same_failure(
    failing: Callable[..., Run], make_run: Make
) -> None:
    kl = 0.02 + 0.001 * np.random.default_rng(1).normal(size=60)
    kl[24:] += 0.3
    m = classify_reproduction(
        replace(failing(30), replays=(make_run(signals={"kl_ref": kl}),))
    ).metrics
    assert (m.n_runs, m.n_failed, m.random) == (2, 1, False)


def test_without_reruns_there_is_no_data(failing: Callable[..., Run]) -> None:
    with pytest.raises(NoData, match="no rerun was named"):
        classify_reproduction(failing(30))
