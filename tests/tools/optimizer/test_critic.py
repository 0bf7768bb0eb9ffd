"""Figures of PPO's value function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Run

TOOL = "check_critic"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def test_figures_by_hand(make_run: MakeRun, measure: Measure) -> None:
    # Thirds of four steps. Values 0.9 against returns 0.3, rewards that spread by 0.4: 1.5 spreads.
    run = make_run(
        signals={
            "value_explained_variance": [-0.5] * 4 + [0.1] * 4 + [0.3, 0.5, 0.3, 0.3],
            "value_loss": [2.0] * 4 + [1.0] * 4 + [0.5] * 4,
            "value_mean": [0.0] * 4 + [0.9] * 8,
            "return_mean": [0.3] * 12,
            "reward_std": [0.4] * 12,
            "reward_mean": [0.3] * 12,
        }
    )
    found = measure(TOOL, run)
    assert found["has_critic"]
    assert (found["explained_early"], found["explained_late"]) == (-0.5, 0.3)
    assert (found["below_zero_late"], found["spread_late"]) == (0.0, 0.4)
    assert found["bias_late"] == pytest.approx(1.5)
    assert found["value_loss_late_over_early"] == 0.25
    assert (found["reward_gain_z"], found["first_bad_step"]) == (0.0, None)


def test_one_that_breaks_is_dated(make_run: MakeRun, measure: Measure) -> None:
    explained = [-0.2] * 5 + [0.4] * 15 + [-0.3] * 20
    found = measure(TOOL, make_run(signals={"value_explained_variance": explained}))
    assert (found["last_good_step"], found["first_bad_step"]) == (20, 21)
    assert found["below_zero_late"] == 1.0
    assert not found["from_start"]


def test_one_that_never_learnt_is_bad_from_the_start(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(signals={"value_explained_variance": [-0.1] * 40}))
    assert (found["first_bad_step"], found["from_start"]) == (1, True)


def test_a_late_dip_is_no_onset(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(signals={"value_explained_variance": [0.4] * 35 + [-0.3] * 5}))
    assert found["first_bad_step"] is None


def test_the_spread_is_half_the_range_of_returns_where_no_other_is_logged(
    make_run: MakeRun, measure: Measure
) -> None:
    run = make_run(
        signals={"value_loss": [1.0] * 9, "return_max": [1.0] * 9, "return_min": [-1.0] * 9}
    )
    assert measure(TOOL, run)["spread_late"] == 1.0


def test_grpo_has_none(make_run: MakeRun, evidence: Callable[..., Evidence]) -> None:
    # Returns are logged by verl without a value function as well.
    found = evidence(TOOL, make_run(signals={"reward_mean": [0.5] * 9, "return_mean": [0.5] * 9}))
    assert found.metrics is not None
    assert found.metrics["has_critic"] is False
    assert "not applicable" in found.summary


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "no metrics" in missing(TOOL, make_run())
    assert "fewer than 9" in missing(TOOL, make_run(signals={"value_loss": [1.0] * 8}))
