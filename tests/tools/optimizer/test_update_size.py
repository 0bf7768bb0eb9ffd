"""Captured updates over the weights and over the learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from firstbad.tools.flight import Flight, FlightStep, Norms, ParameterGroup
from firstbad.tools.run import Run

TOOL = "measure_update_size"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def flight(updates: Sequence[float], grads: Sequence[float]) -> Flight:
    """Captured steps 10, 20, ... of two groups: updates 3 u and 4 u, weights 300 and 400."""
    kept = {
        10 * i: FlightStep(
            10 * i,
            parameters=(
                ParameterGroup("a", update_norm=3 * u, weight_norm=300.0),
                ParameterGroup("b", update_norm=4 * u, weight_norm=400.0),
            ),
            norms=(Norms(before_clip=g),),
        )
        for i, (u, g) in enumerate(zip(updates, grads, strict=True), 1)
    }
    return Flight(list(kept), kept.__getitem__)


def test_figures_by_hand(make_run: MakeRun, measure: Measure) -> None:
    # Groups of 3 and 4 give 5: 5 u over 500. The fifth is 6 times the median, its gradient twice.
    run = make_run(
        signals={"learning_rate": [1e-4] * 50},
        flight=flight([0.1, 0.1, 0.1, 0.1, 0.6], [1.0, 1.0, 1.0, 1.0, 2.0]),
    )
    found = measure(TOOL, run)
    assert found["n_steps"] == 5
    assert found["relative_median"] == pytest.approx(0.001)
    assert found["relative_largest"] == pytest.approx(0.006)
    assert (found["jump_factor"], found["grad_factor"]) == (6.0, 2.0)
    assert found["jump_beyond_grad"] == 3.0
    assert found["leapt"]
    assert (found["last_good_step"], found["first_bad_step"], found["sampled"]) == (40, 50, True)


@pytest.mark.parametrize(
    ("updates", "grads", "rates"),
    [
        ([0.1] * 4 + [0.6], [1.0] * 4 + [6.0], [1e-4] * 50),
        ([0.1] * 4 + [0.6], [1.0] * 5, [1e-4] * 45 + [6e-4] * 5),
        ([0.9, 0.5, 0.2, 0.1, 0.1], [1.0] * 5, [1e-4] * 50),
    ],
    ids=["with the gradient", "with the rate", "Adam's first steps are its largest"],
)
def test_updates_that_leap_for_a_reason(
    make_run: MakeRun,
    measure: Measure,
    updates: list[float],
    grads: list[float],
    rates: list[float],
) -> None:
    run = make_run(signals={"learning_rate": rates}, flight=flight(updates, grads))
    found = measure(TOOL, run)
    assert (found["leapt"], found["first_bad_step"]) == (False, None)


def test_steps_without_a_known_rate_are_held_against_none(
    make_run: MakeRun, measure: Measure, make_signal: Callable[..., Any]
) -> None:
    late = make_signal("learning_rate", [1e-4] * 10, steps=range(41, 51))
    run = make_run(signals={"learning_rate": late}, flight=flight([0.1] * 5, [1.0] * 5))
    found = measure(TOOL, run)
    assert (found["leapt"], found["jump_factor"]) == (False, None)


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "recorder" in missing(TOOL, make_run())
    bare = FlightStep(1, parameters=(ParameterGroup("a", update_norm=1.0),))
    assert "recorder" in missing(TOOL, make_run(flight=Flight([1], {1: bare}.__getitem__)))
