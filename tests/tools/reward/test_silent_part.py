"""Steps in which the verifier returns nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "find_silent_part"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def steps(batch: MakeBatch, silent: set[int], instead: str = "short") -> list[RolloutBatch]:
    """Ten steps of four rows; in silent ones `correct` scores none."""
    found = []
    for s in range(1, 11):
        parts: dict[str, list[float]] = {"correct": [1, 0, 1, 0], "short": [0.5, 0.25, 0.5, 0.1]}
        if s in silent:
            parts = {instead: parts["short"]}
        found.append(batch(s, rewards=parts, advantage=[1, -1, 1, -1]))
    return found


def test_silent_steps_are_counted_and_dated(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    found = measure(TOOL, make_run(rollouts=steps(batch, {5, 6, 7})))
    assert (found["n_steps"], found["n_silent"], found["rows_silent"]) == (10, 3, 12)
    assert (found["usual"], found["other_task"]) == (1, False)
    assert (found["last_good_step"], found["first_bad_step"]) == (4, 5)
    assert found["last_bad_step"] == 7


def test_a_part_that_takes_its_place_makes_them_another_task(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    found = measure(TOOL, make_run(rollouts=steps(batch, {5, 6, 7}, instead="code")))
    assert found["other_task"]


@pytest.mark.parametrize("silent", [set(), {10}])
def test_without_silence_and_to_the_end(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, silent: set[int]
) -> None:
    found = measure(TOOL, make_run(rollouts=steps(batch, silent)))
    assert found["n_silent"] == len(silent)
    assert found["first_bad_step"] == (10 if silent else None)
    assert found["last_bad_step"] is None
