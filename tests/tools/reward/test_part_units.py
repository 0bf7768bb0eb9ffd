"""The unit of a reward part, which may grow while what it pays for stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "measure_part_units"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def paid(batch: MakeBatch, amounts: Callable[[int], list[float]], steps: int = 40) -> list[Any]:
    return [batch(s, rewards={"form": amounts(s)}) for s in range(1, steps + 1)]


def test_a_unit_that_grows_by_a_tenth(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # 1 up to step 20, then 1.1^(s - 20): fifths of 40 steps are 8; the last ones end at 1.1^20.
    def amounts(s: int) -> list[float]:
        unit = 1.1 ** max(0, s - 20)
        return [0.0, unit, unit / 2, unit]

    found = measure(TOOL, make_run(rollouts=paid(batch, amounts)))
    last = float(np.median([1.1**k for k in range(13, 21)]))
    assert found["unit_factor"] == pytest.approx(last)
    assert (found["unit_first"], found["grows"], found["n_parts"]) == (1.0, True, 1)
    assert (found["last_good_step"], found["first_bad_step"], found["from_start"]) == (
        20,
        21,
        False,
    )


def test_a_unit_that_grows_from_the_start(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    found = measure(TOOL, make_run(rollouts=paid(batch, lambda s: [0.0, 1.1**s])))
    assert found["from_start"]
    assert found["unit_factor"] > 10


@pytest.mark.parametrize(
    "amounts",
    [
        lambda s: [0.0, 1.0, 0.5],  # stays
        lambda s: [0.0, 0.5, min(4, 1 + s // 10) / 2],  # a ladder of four amounts is climbed
        lambda s: [0.1 * s * k for k in range(8)],  # pays by length: many amounts in one step
        lambda s: [0.0, 0.0, 0.0],  # nothing is paid
        lambda s: [0.0, -1.0 if s < 20 else 1.0],  # changes its sign
    ],
    ids=["steady", "ladder", "length", "nothing", "sign"],
)
def test_what_is_no_growing_unit(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, amounts: Callable[[int], list[float]]
) -> None:
    found = measure(TOOL, make_run(rollouts=paid(batch, amounts)))
    assert (found["unit_factor"], found["first_bad_step"]) == (1.0, None)


@pytest.mark.parametrize(("weight", "factor"), [(0, 1.0), (0.2, 1.1**34)])
def test_a_part_that_is_only_watched(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, weight: float, factor: float
) -> None:
    # Fifths of 40 steps are 8: from 1.1^4.5 on average to 1.1^36.5, by medians 32 steps apart.
    rows = [
        batch(s, rewards={"right": [0.0, 1.0], "steps": [0.0, 1.1**s]}, size=2)
        for s in range(1, 41)
    ]
    run = make_run(config={"reward_weights": [1.0, weight]}, rollouts=rows)
    assert measure(TOOL, run)["unit_factor"] == pytest.approx(factor, rel=0.25)


def test_order_and_scale_do_not_matter(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    def run(factor: float, order: list[int]) -> Run:
        def amounts(s: int) -> list[float]:
            unit = factor * 1.05 ** max(0, s - 10)
            return [[0.0, unit, unit / 2, unit][i] for i in order]

        return make_run(rollouts=paid(batch, amounts))

    a, b = measure(TOOL, run(1.0, [0, 1, 2, 3])), measure(TOOL, run(7.0, [3, 0, 2, 1]))
    assert a["unit_factor"] == pytest.approx(b["unit_factor"])
    assert a["first_bad_step"] == b["first_bad_step"]
