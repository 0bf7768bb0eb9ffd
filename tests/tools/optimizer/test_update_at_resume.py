"""The first update after a resume against those before it, from hand-made norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from firstbad.tools.flight import FlightStep, Norms, ParameterGroup
from firstbad.tools.run import Run
from synthetic.by_hand import flight

TOOL = "compare_updates_at_resume"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
STEADY = [38.0, 30.0, 24.0, *[18.0, 18.3, 17.9, 18.1] * 6]


def run_of(
    make_run: MakeRun,
    per_rate: Sequence[float],
    *,
    resumed: Sequence[int] = (16,),
    grads: Sequence[float] | None = None,
    kept: range | None = None,
) -> Run:
    """Updates of these sizes over a learning rate that falls, each captured unless `kept` says."""
    n = len(per_rate)
    rates = [0.01 * (1 - i / (2 * n)) for i in range(n)]
    grads = [1.0] * n if grads is None else grads
    steps = [
        FlightStep(
            i + 1,
            parameters=(ParameterGroup("all", grads[i], per_rate[i] * rates[i], 100.0),),
            norms=(Norms(before_clip=grads[i]),),
        )
        for i in range(n)
        if kept is None or i + 1 in kept
    ]
    events = [("resume", step, "resumed") for step in resumed]
    return make_run(signals={"learning_rate": rates}, flight=flight(*steps), events=events)


def test_an_optimizer_that_goes_on(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, run_of(make_run, STEADY))
    assert found["n_resumes"] == 1
    assert found["factor"] == pytest.approx(1, abs=0.03)
    assert (found["change_z"] < 3, found["first_bad_step"]) == (True, None)


def test_an_optimizer_that_begins_anew(make_run: MakeRun, measure: Measure) -> None:
    sizes = [*STEADY[:15], 38.5, 31.0, 25.0, *STEADY[18:]]
    found = measure(TOOL, run_of(make_run, sizes))
    assert found["factor"] == pytest.approx(38.5 / 18.0, rel=0.02)
    assert found["off_first"] == pytest.approx(38.5 / 38.0, rel=1e-3)
    assert (found["last_good_step"], found["first_bad_step"]) == (15, 16)
    assert found["change_z"] > 6


def test_an_update_that_goes_with_its_gradient(make_run: MakeRun, measure: Measure) -> None:
    sizes = [*STEADY[:15], *[36.0] * 12]
    found = measure(TOOL, run_of(make_run, sizes, grads=[1.0] * 15 + [2.0] * 12))
    assert (found["grad_factor"], found["beyond_grad"]) == (2, pytest.approx(1, abs=0.03))


@pytest.mark.parametrize(
    "where",
    [
        {"resumed": ()},
        {"resumed": (3,)},  # too few steps before it
        {"kept": range(1, 28, 7)},  # none captured beside it
        {"kept": range(1, 16)},  # none after it
    ],
)
def test_nothing_to_compare(make_run: MakeRun, measure: Measure, where: dict[str, Any]) -> None:
    found = measure(TOOL, run_of(make_run, STEADY, **where))
    assert (found["n_resumes"], found["factor"], found["first_bad_step"]) == (0, None, None)


def test_the_worst_of_several_resumes(make_run: MakeRun, measure: Measure) -> None:
    sizes = [*STEADY[:15], 9.0, *STEADY[16:]]
    found = measure(TOOL, run_of(make_run, sizes, resumed=(16, 22)))
    assert (found["n_resumes"], found["first_bad_step"]) == (2, 16)
    assert found["factor"] == pytest.approx(0.5, abs=0.02)
