"""Leaps of the logged reward that come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Run

TOOL = "find_reward_spikes"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def quiet(steps: int = 60) -> dict[str, list[float]]:
    return {"reward_mean": [0.5, 0.6] * (steps // 2), "reward_std": [0.3, 0.4] * (steps // 2)}


def with_spikes(*at: int, mean: float = 40.0, spread: float = 200.0) -> dict[str, list[float]]:
    values = quiet()
    for step in at:
        values["reward_mean"][step - 1], values["reward_std"][step - 1] = mean, spread
    return values


def test_spikes_by_hand(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(signals=with_spikes(31, 33, 34, 50)))
    assert (found["n_steps"], found["n_spikes"]) == (60, 4)
    assert (found["level"], found["largest"]) == (0.6, 40.0)
    assert (found["last_good_step"], found["first_bad_step"]) == (30, 31)


def test_spikes_in_most_later_steps_do_not_become_usual(
    make_run: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, make_run(signals=with_spikes(*(s for s in range(21, 61) if s % 5))))
    assert (found["n_spikes"], found["first_bad_step"]) == (32, 21)


@pytest.mark.parametrize("name", ["reward_mean", "reward_std"])
def test_one_of_the_two_is_enough_where_the_other_is_not_logged(
    make_run: MakeRun, measure: Measure, name: str
) -> None:
    found = measure(TOOL, make_run(signals={name: with_spikes(31)[name]}))
    assert (found["n_spikes"], found["first_bad_step"]) == (1, 31)


def test_negative_rewards_leap_too(make_run: MakeRun, measure: Measure) -> None:
    assert measure(TOOL, make_run(signals=with_spikes(31, mean=-40.0)))["n_spikes"] == 1


def test_the_bound_is_ten_times_all_before(make_run: MakeRun, measure: Measure) -> None:
    assert measure(TOOL, make_run(signals=with_spikes(31, mean=6.1)))["n_spikes"] == 1
    assert measure(TOOL, make_run(signals=with_spikes(31, mean=5.9)))["n_spikes"] == 0


def test_a_reward_that_rises_by_learning_is_no_spike(make_run: MakeRun, measure: Measure) -> None:
    rng = np.random.default_rng(0)
    mean = 0.02 + 0.9 / (1 + np.exp(-(np.arange(60) - 30) / 4)) + 0.01 * rng.normal(size=60)
    spread = np.sqrt(np.clip(mean * (1 - mean), 1e-4, 1))
    signals = {"reward_mean": mean, "reward_std": spread}
    assert measure(TOOL, make_run(signals=signals))["n_spikes"] == 0


def test_a_new_level_is_no_spike(make_run: MakeRun, measure: Measure) -> None:
    """An easier curriculum, or another scale: it does not come back."""
    found = measure(TOOL, make_run(signals=with_spikes(*range(31, 61))))
    assert found["n_spikes"] == 0


def test_the_first_successes_are_no_spike(make_run: MakeRun, measure: Measure) -> None:
    """From a spread of nothing; the mean does not leap."""
    found = measure(TOOL, make_run(signals=with_spikes(31, 35, mean=0.9)))
    assert found["n_spikes"] == 0
    zero = {"reward_mean": [0.0] * 30 + [0.02, 0.0] * 15}
    assert measure(TOOL, make_run(signals=zero))["n_spikes"] == 0


def test_what_the_reward_paid_early_is_how_it_was_built(
    make_run: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, make_run(signals=with_spikes(8, 31, 47)))
    assert found["n_spikes"] == 0


def test_the_window_begins_at_the_first_leap(make_run: MakeRun, measure: Measure) -> None:
    found = measure("find_first_bad", make_run(signals=with_spikes(31, 40)))
    assert (found["last_good_step"], found["first_bad_step"]) == (30, 31)
    assert found["is_onset"]
    assert found["reward_spiked"] is True
    assert found["reward_fell"] is False
    calm = measure("find_first_bad", make_run(signals=quiet()))
    assert calm["is_steady"]
    assert calm["reward_spiked"] is False


def test_without_a_reward(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "reward" in missing(TOOL, make_run(signals={"kl_ref": [0.1] * 20}))
