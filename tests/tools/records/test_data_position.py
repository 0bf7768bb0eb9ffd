"""Prompts after a resume against every earlier stretch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight, FlightStep
from firstbad.tools.run import RolloutBatch, Run

TOOL = "compare_data_position"
AT = 21
MakeRun = Callable[..., Run]
Batch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def resumed(make_run: MakeRun, batch: Batch, places: Sequence[int]) -> Run:
    """A run of 30 steps, resumed at 21, each of which draws two prompts at a place of the data."""
    rollouts = [
        batch(
            step,
            prompts=[f"p{2 * place + g}" for g in (0, 0, 1, 1)],
            completions=["x"] * 4,
            group=np.array([0, 0, 1, 1]),
        )
        for step, place in enumerate(places, 1)
    ]
    return make_run(rollouts=rollouts, events=[("resume", AT, "step goes back")])


@pytest.mark.parametrize(
    ("places", "share", "source", "round_"),
    [
        (range(30), 0.0, None, None),  # goes on
        ([*range(20), *range(10)], 1.0, 1, True),  # begins anew; whether a pass was over is open
        ([*range(20), *range(5), *range(40, 45)], 1.0, 1, False),  # and was not: new ones follow
        ([*range(20), *range(7, 17)], 1.0, 8, False),  # goes back to the 8th step
        ([i % 8 for i in range(30)], 1.0, 5, True),  # passes of 8 steps, the resume inside one
        ([*range(20), *range(19, 9, -1)], 1 / 6, 20, None),  # the same prompts in another order
    ],
)
def test_where_the_data_goes_on(
    make_run: MakeRun,
    batch: Batch,
    measure: Measure,
    places: Sequence[int],
    share: float,
    source: int | None,
    round_: bool | None,
) -> None:
    found = measure(TOOL, resumed(make_run, batch, places))
    assert found["n_resumes"] == 1
    if share in (0.0, 1.0):
        assert found["replayed_share"] == share
        assert found["replayed_from_step"] == source
    else:
        assert found["replayed_share"] < 0.9
    assert found["goes_round"] is round_
    bad = round_ is False
    assert (found["last_good_step"], found["first_bad_step"]) == ((20, 21) if bad else (None, None))


@pytest.mark.parametrize(("after", "fell"), [(41, False), (1, True)])
def test_the_recorded_position(make_run: MakeRun, measure: Measure, after: int, fell: bool) -> None:
    kept = {s: FlightStep(s, data_position=2 * s if s < AT else after) for s in (10, 20, 21, 25)}
    run = make_run(
        flight=Flight(list(kept), kept.__getitem__), events=[("resume", AT, "step goes back")]
    )
    found = measure(TOOL, run)
    assert found["position_fell"] is fell
    assert (found["last_good_step"], found["first_bad_step"]) == (
        (AT - 1, AT) if fell else (None, None)
    )


def test_no_resume_and_an_early_one(
    make_run: MakeRun, batch: Batch, measure: Measure, missing: Callable[..., str]
) -> None:
    assert "no rollouts" in missing(TOOL, make_run())
    run = resumed(make_run, batch, range(30))
    run.events = ()
    assert measure(TOOL, run)["n_resumes"] == 0
    run = resumed(make_run, batch, range(AT))
    assert "on both sides" in missing(TOOL, run)
