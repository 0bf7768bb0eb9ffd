"""The largest captured update, and the reward around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.flight import Flight, FlightStep, ParameterGroup
from firstbad.tools.run import Run

TOOL = "find_heavy_update"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def flight(**shares: float) -> Flight:
    """Updates over weights by captured step, `s3=0.1`."""
    kept = {
        int(name[1:]): FlightStep(
            int(name[1:]),
            parameters=(ParameterGroup("w", update_norm=5 * share, weight_norm=5.0),),
        )
        for name, share in shares.items()
    }
    return Flight(list(kept), kept.__getitem__)


@pytest.mark.parametrize(
    ("step", "before", "after", "from_start"),
    [(3, [0.8, 0.8, 0.5], [0.2, 0.2, 0.2, 0.2, 0.2], False), (1, [0.8], [0.2] * 7, True)],
)
def test_the_reward_before_and_after_by_hand(
    make_run: MakeRun,
    measure: Measure,
    step: int,
    before: list[float],
    after: list[float],
    from_start: bool,
) -> None:
    heavy = flight(**{f"s{step}": 0.4, "s7": 0.01})
    found = measure(TOOL, make_run(signals={"reward_mean": [*before, *after]}, flight=heavy))
    mean = sum(before) / len(before)
    assert (found["n_steps"], found["share"]) == (2, 0.4)
    assert (found["reward_before"], found["reward_after"]) == pytest.approx((mean, 0.2))
    assert found["reward_kept"] == pytest.approx(0.2 / mean, abs=1e-4)
    assert (found["first_bad_step"], found["from_start"]) == (step, from_start)


@pytest.mark.parametrize("rewards", [[-0.5, -0.5, 0.1], [0.0, 0.0, 0.1], [0.5, 0.5]])
def test_no_share_of_a_reward_that_is_not_above_0_or_not_there(
    make_run: MakeRun, measure: Measure, rewards: list[float]
) -> None:
    run = make_run(signals={"reward_mean": rewards}, flight=flight(s2=0.4))
    assert measure(TOOL, run)["reward_kept"] is None
