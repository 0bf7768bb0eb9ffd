"""Weights of the reward parts, fitted from their sum."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "fit_part_weights"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def rows(batch: MakeBatch, weight: Callable[[int], float], steps: int = 40) -> list[RolloutBatch]:
    """The outcome weighs 1; each step has its own means."""
    made = []
    for s in range(1, steps + 1):
        right = np.array([1.0] * (s % 5) + [0.0] * (8 - s % 5))
        form = np.array([1.0] * (s % 7) + [0.0] * (8 - s % 7))
        total = right + weight(s) * form
        made.append(batch(s, rewards={"correct": right, "form": form}, total=total))
    return made


def test_a_weight_that_changes(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    found = measure(TOOL, make_run(rollouts=rows(batch, lambda s: 0.2 if s <= 20 else 0.6)))
    assert (found["fits"], found["changed"]) == (True, True)
    assert found["largest_factor"] == pytest.approx(3, abs=1e-4)
    # At step 21, a multiple of 7, no row is well formed, so that it tells nothing.
    assert (found["last_good_step"], found["first_bad_step"]) == (20, 22)


@pytest.mark.parametrize("after", [0.0, -0.2])
def test_a_weight_that_goes_or_turns(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, after: float
) -> None:
    found = measure(TOOL, make_run(rollouts=rows(batch, lambda s: 0.2 if s <= 20 else after)))
    assert (found["changed"], found["largest_factor"]) == (True, 999)


def test_weights_that_stay(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    found = measure(TOOL, make_run(rollouts=rows(batch, lambda s: 0.2)))
    assert (found["fits"], found["changed"], found["first_bad_step"]) == (True, False, None)


def test_a_part_that_begins_late_had_its_weight_all_along(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    made = []
    for s in range(1, 41):
        right = np.array([1.0] * (s % 5) + [0.0] * (8 - s % 5))
        form = np.array([1.0] * (s % 7) + [0.0] * (8 - s % 7)) * (s > 20)
        made.append(batch(s, rewards={"correct": right, "form": form}, total=right + 0.5 * form))
    assert not measure(TOOL, make_run(rollouts=made))["changed"]


def test_a_total_with_something_else_in_it(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """KL is taken off the total from the start: no weighted sum explains it."""
    rng = np.random.default_rng(0)
    made = [
        batch(b.step, rewards=b.rewards, total=np.asarray(b.total) - rng.uniform(0, 0.5))
        for b in rows(batch, lambda s: 0.2)
    ]
    found = measure(TOOL, make_run(rollouts=made))
    assert (found["fits"], found["changed"]) == (False, False)


def test_by_the_logged_mean(simulate: MakeRun, measure: Measure) -> None:
    """The simulator logs the mean of the total and writes none beside the rows."""

    def log(values: dict[str, Any], at: Any) -> None:
        values["reward_mean"] += np.where(at >= ONSET, 0.4, 0.0) * values["reward_part/format"]

    found = measure(TOOL, simulate(1, log=log))
    assert (found["changed"], found["first_bad_step"]) == (True, ONSET)
    assert found["largest_factor"] == pytest.approx(3, abs=0.01)


def test_too_few_steps(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    assert "fewer than 20" in missing(TOOL, make_run(rollouts=rows(batch, lambda s: 0.2, 10)))


def test_a_sound_simulated_run(simulate: MakeRun, measure: Measure) -> None:
    def same(d: SimpleNamespace) -> None:
        return None

    assert not measure(TOOL, simulate(2, edit=same))["changed"]
