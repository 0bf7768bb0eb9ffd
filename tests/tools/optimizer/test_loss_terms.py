"""A term in the logged loss that no config names."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import RolloutBatch, Run

TOOL = "find_loss_terms"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Values = dict[str, npt.NDArray[np.float64]]
Steps = npt.NDArray[np.float64]


def bonus(coefficient: float, onset: int = 1, rise: float = 2.0) -> Callable[[Values, Steps], None]:
    """An entropy bonus in the loss from a step on, and the entropy rising under it."""

    def log(values: Values, steps: Steps) -> None:
        after = steps >= onset
        values["entropy"][after] *= np.linspace(1, rise, int(after.sum()))
        values["loss"][after] -= coefficient * values["entropy"][after]

    return log


def test_hand_computed_term(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Two rows of 10 tokens with A = 1 and -1: the policy loss is 0 at every step, beta is 0, so the
    # whole logged loss -0.1 H is left. H rises from 1.0 by 0.1 a step to 2.9; its mean over the
    # last third (15 to 20: 2.4 ... 2.9) is 2.65, over the first third 1.25, 2.12 times as high.
    entropy = [1.0 + 0.1 * i for i in range(20)]
    rows = [
        batch(s, rewards={"correct": [1, 0]}, advantage=[1, -1], n_tokens=[10, 10])
        for s in range(1, 21)
    ]
    signals = {"loss": [-0.1 * h for h in entropy], "entropy": entropy}
    found = measure(TOOL, make_run(rollouts=rows, signals=signals, config={"loss_type": "dapo"}))
    assert found["n_steps"] == 20
    assert found["entropy_term"]
    assert found["entropy_coefficient"] == pytest.approx(-0.1)
    assert found["entropy_correlation"] == pytest.approx(-1)
    assert found["offset"] == pytest.approx(-0.265)
    assert found["entropy_rise"] == pytest.approx(2.12)
    assert found["from_start"]
    assert (found["last_good_step"], found["first_bad_step"]) == (None, 1)


def test_a_bonus_that_appears_is_dated(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, log=bonus(0.1, ONSET)))
    assert found["entropy_term"]
    assert found["entropy_coefficient"] == pytest.approx(-0.1, rel=0.02)
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert not found["from_start"]
    assert found["entropy_rise"] > 1.5


def test_a_penalty_has_the_other_sign(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, log=bonus(-0.1, rise=0.5)))
    assert found["entropy_coefficient"] == pytest.approx(0.1, rel=0.02)
    assert found["entropy_rise"] < 0.8
    assert found["from_start"]


def test_a_bonus_that_the_config_states_is_no_find(simulate: MakeRun, measure: Measure) -> None:
    run = simulate(1, log=bonus(0.1), config={"entropy_coef": 0.1})
    assert not measure(TOOL, run)["entropy_term"]


def rising_entropy(values: Values, steps: Steps) -> None:
    values["entropy"] *= np.linspace(1, 3, len(steps))


def constant_offset(values: Values, steps: Steps) -> None:
    values["loss"] += 0.2


def one_spike(values: Values, steps: Steps) -> None:
    values["loss"][steps == ONSET] -= 5.0


def noise(values: Values, steps: Steps) -> None:
    values["loss"] += 0.01 * np.random.default_rng(3).normal(size=len(steps))


@pytest.mark.parametrize("change", [rising_entropy, constant_offset, one_spike, noise])
def test_what_is_no_entropy_term(
    simulate: MakeRun, measure: Measure, change: Callable[[Values, Steps], None]
) -> None:
    found = measure(TOOL, simulate(1, log=change))
    assert not found["entropy_term"]
    assert found["entropy_coefficient"] is None
    assert found["first_bad_step"] is None
    assert not found["from_start"]


def test_beta_0_and_no_entropy_logged(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    run = simulate(1, config={"beta": 0.0})
    bare = changed.relog(run, entropy=None, kl_ref=None)
    found = measure(TOOL, bare)
    assert not found["entropy_term"]
    assert found["entropy_rise"] is None
    assert found["offset"] == pytest.approx(0, abs=1e-9)


def test_without_data(
    make_run: MakeRun, simulate: MakeRun, missing: Callable[..., str], changed: SimpleNamespace
) -> None:
    assert "no logged loss" in missing(TOOL, make_run())
    assert "at least 20" in missing(TOOL, simulate(1, steps=19))
    run = changed.relog(simulate(1, steps=30), loss=None)
    assert "no logged loss" in missing(TOOL, run)


@settings(max_examples=4, derandomize=True)
@given(order=st.permutations(range(4)), by=st.integers(0, 1000), size=st.floats(0.05, 0.5))
def test_order_of_groups_and_step_numbers_do_not_matter(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    by: int,
    size: float,
) -> None:
    run = simulate(2, steps=40, log=bonus(size, 21))
    before = measure(TOOL, run)
    assert before["entropy_coefficient"] == pytest.approx(-size, rel=0.05)
    moved = changed.rebatch(run, lambda b: changed.reorder_groups(b, order))
    after = measure(TOOL, changed.shift_steps(moved, by))
    del before["offset_over_spread"], after["offset_over_spread"]  # over a spread of rounding
    assert after == pytest.approx(changed.dates_moved(before, by), abs=1e-4)


@pytest.mark.parametrize(("coefficient", "over"), [(0.15, True), (0.001, False)])
def test_a_declared_bonus_is_weighed(
    simulate: MakeRun, measure: Measure, coefficient: float, over: bool
) -> None:
    run = simulate(1, log=bonus(coefficient), config={"entropy_coef": coefficient})
    found = measure(TOOL, run)
    assert not found["entropy_term"], "what the config states is no hidden term"
    assert found["declared_coefficient"] == coefficient
    assert (found["declared_over_policy"] > 0.5) is over
    assert found["entropy_rise"] > 1
