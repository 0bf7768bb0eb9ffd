"""Gradients that never arrive, and steps that rightly have none."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Run

TOOL = "check_arrival"
ONSET = 31

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Values = dict[str, npt.NDArray[np.float64]]
Steps = npt.NDArray[np.float64]


def zero_from(first: int, last: int = 10**6) -> Callable[[Values, Steps], None]:
    def log(values: Values, steps: Steps) -> None:
        values["grad_norm_preclip"][(steps >= first) & (steps <= last)] = 0

    return log


def kl_0(values: Values, steps: Steps) -> None:
    values["kl_ref"][:] = 0


def all_right(d: SimpleNamespace) -> None:
    for part in d.rewards.values():
        part[:] = 1


@pytest.mark.parametrize(("last", "length"), [(60, 30), (45, 15)])
def test_a_gradient_of_0_is_dated(
    simulate: MakeRun, measure: Measure, last: int, length: int
) -> None:
    found = measure(TOOL, simulate(1, log=zero_from(ONSET, last)))
    assert (found["n_steps"], found["zero_run"]) == (60, length)
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert not found["from_start"]


def test_a_gradient_of_0_from_the_start(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, log=zero_from(1)))
    assert found["zero_run"] == 60
    assert (found["last_good_step"], found["first_bad_step"]) == (None, 1)
    assert found["from_start"]


def test_a_few_steps_without_a_gradient_are_not_dated(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, log=zero_from(ONSET, ONSET + 4)))
    assert found["zero_run"] == 5
    assert found["first_bad_step"] is None


def test_a_policy_that_does_not_move_beside_a_norm(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, log=kl_0))
    assert (found["zero_run"], found["kl_still_share"]) == (0, 1)
    assert (found["first_bad_step"], found["from_start"]) == (1, True)


def test_a_sound_run(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1))
    assert (found["n_steps"], found["zero_run"], found["kl_still_share"]) == (60, 0, 0)
    assert found["first_bad_step"] is None


def test_steps_without_contrast_may_have_no_gradient(simulate: MakeRun, measure: Measure) -> None:
    """With beta 0 the gradient of a step whose groups are all right is exactly 0."""

    def edit(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            all_right(d)

    run = simulate(1, edit=edit, log=zero_from(ONSET), config={"beta": 0.0})
    found = measure(TOOL, run)
    assert (found["n_steps"], found["zero_run"]) == (30, 0)
    assert found["first_bad_step"] is None


def test_without_rollouts_a_kl_term_must_pull(
    make_run: MakeRun, measure: Measure, missing: Callable[..., str]
) -> None:
    signals = {"grad_norm_preclip": [0.5] * 20 + [0.0] * 20}
    assert measure(TOOL, make_run(signals=signals, config={"beta": 0.04}))["zero_run"] == 20
    assert "must have a gradient" in missing(TOOL, make_run(signals=signals, config={"beta": 0.0}))


def test_steps_with_rate_0_may_stand_still(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        still = steps <= 20
        for name in ("learning_rate", "grad_norm_preclip", "kl_ref"):
            values[name][still] = 0

    found = measure(TOOL, simulate(1, log=log))
    assert found["n_steps"] == 40
    assert found["zero_run"] == found["kl_still_share"] == 0


def test_a_rounded_log_cannot_tell_a_small_kl_from_0(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["kl_ref"] *= 1e-4
        for name in ("kl_ref", "grad_norm_preclip"):
            values[name][:] = np.round(values[name], 4)

    found = measure(TOOL, simulate(1, log=log))
    assert found["kl_still_share"] is found["first_bad_step"] is None


def test_without_a_kl_weight_kl_says_nothing(simulate: MakeRun, measure: Measure) -> None:
    assert measure(TOOL, simulate(1, config={"beta": 0.0}))["kl_still_share"] is None


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "gradient norms" in missing(TOOL, make_run())
    few = make_run(signals={"grad_norm_preclip": [1.0] * 9}, config={"beta": 0.1})
    assert "10" in missing(TOOL, few)


@settings(max_examples=6, derandomize=True)
@given(by=st.integers(1, 1000), seed=st.integers(0, 50))
def test_step_numbers_do_not_matter(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace, by: int, seed: int
) -> None:
    run = simulate(seed, log=zero_from(ONSET))
    assert measure(TOOL, changed.shift_steps(run, by)) == changed.dates_moved(
        measure(TOOL, run), by
    )
