"""Used share of the KL budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Config, RolloutBatch, Run

TOOL = "measure_kl_budget"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def run_of(
    make_run: MakeRun,
    batch: MakeBatch,
    *,
    beta: float = 0.1,
    kl: float = 0.02,
    reward: list[float] | None = None,
    **signals: object,
) -> Run:
    """Nine steps of one group, with advantages of size 2."""
    rows = [
        batch(s, rewards={"correct": [1, 0, 1, 0]}, advantage=[2, -2, 2, -2]) for s in range(1, 10)
    ]
    values = {
        "kl_ref": [kl] * 9,
        "completion_length_mean": [50.0] * 9,
        "reward_mean": reward or [0.5, 0.6] * 4 + [0.5],
        **signals,
    }
    return make_run(config={"beta": beta}, rollouts=rows, signals=values)


def test_hand_computed_share(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # KL per sequence 0.02 x 50 = 1 nat, E[A^2] = 4: 2 x 0.1^2 x 1 / 4 = 0.005.
    # Loss 0.008 against beta x KL = 0.002: a quarter.
    found = measure(TOOL, run_of(make_run, batch, loss=[0.008] * 9))
    assert found["used_share"] == pytest.approx(0.005)
    assert found["kl_share_of_loss"] == 0.25
    assert (found["beta"], found["kl_late"], found["contrast"]) == (0.1, 0.02, 1)
    # 0.1 nats per token, 5 per sequence: sqrt(4 / (2 x 5)) = 0.632.
    assert found["beta_loose"] == 0.63


def test_gain_is_told_in_standard_errors(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # Each third 0 1 0: no line in it, squares about its mean 2/3, so 2 over 9 - 6 degrees of
    # freedom. Neighbours: 2 x (2/3)(-1/3) a third, negative, widens nothing.
    flat = measure(TOOL, run_of(make_run, batch, reward=[0.0, 1, 0] * 3))
    assert flat["reward_gain"] == flat["reward_gain_z"] == 0
    # ... and last 2 3 2: 2 over sqrt(2/3 x 2/3) = 2/3.
    rising = measure(TOOL, run_of(make_run, batch, reward=[0.0, 1, 0, 0, 1, 0, 2, 3, 2]))
    assert (rising["reward_gain"], rising["reward_gain_z"]) == (2, 3)


@pytest.mark.parametrize("gain", [0.0, 0.17])
def test_a_rise_that_the_spread_of_a_step_hides(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, gain: float
) -> None:
    # 120 steps that spread by 0.065, about a rise that most of comes early.
    noise = 0.065 * np.random.default_rng(0).standard_normal(120)
    steps = np.arange(120)
    reward = 0.98 + gain * (1 - np.exp(-steps / 30)) / (1 - np.exp(-4)) + noise
    rows = [
        batch(s, rewards={"correct": [1, 0, 1, 0]}, advantage=[2, -2, 2, -2]) for s in range(1, 121)
    ]
    logged = {"kl_ref": [0.02] * 120, "completion_length_mean": [50.0] * 120, "reward_mean": reward}
    found = measure(TOOL, make_run(config={"beta": 0.1}, rollouts=rows, signals=logged))
    assert (found["reward_gain_z"] > 5) == (gain > 0)
    assert (abs(found["reward_gain_z"]) < 3) == (gain == 0)


def test_a_pinned_policy_uses_its_budget(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    # A run with beta 4 whose KL settles at E[A^2]/(2 beta^2) per sequence; E[A^2] is (G-1)/G.
    assert measure(TOOL, simulate(1))["used_share"] < 0.002
    settled = 7 / 8 / (2 * 4.0**2) / 12.5
    pinned = measure(TOOL, changed.relog(simulate(1, config={"beta": 4.0}), kl_ref=[settled] * 60))
    assert pinned["used_share"] == pytest.approx(1, abs=0.1)
    assert abs(pinned["reward_gain_z"]) < 3
    assert pinned["contrast"] > 0.8


def test_groups_without_contrast_are_counted(simulate: MakeRun, measure: Measure) -> None:
    def learned(d: SimpleNamespace) -> None:
        for part in d.rewards.values():
            part[d.group < 3] = 1

    found = measure(TOOL, simulate(1, edit=learned))
    assert found["contrast"] == pytest.approx(0.25, abs=0.02)


def test_one_spike_of_kl_barely_counts_early_in_the_run(
    simulate: MakeRun, measure: Measure
) -> None:
    def log(values: dict[str, np.ndarray[Any, Any]], steps: np.ndarray[Any, Any]) -> None:
        values["kl_ref"][steps == 10] = 100.0

    assert measure(TOOL, simulate(1, log=log)) == measure(TOOL, simulate(1))


@pytest.mark.parametrize("beta", [0.0, None])
def test_without_a_kl_weight_there_is_no_budget(
    simulate: MakeRun, missing: Callable[..., str], beta: float | None
) -> None:
    run = simulate(1, steps=12)
    unweighted = replace(run, config=Config({**run.config.values, "beta": beta}))
    assert "beta" in missing(TOOL, unweighted)


def test_without_data(
    make_run: MakeRun, simulate: MakeRun, missing: Callable[..., str], changed: SimpleNamespace
) -> None:
    assert "beta" in missing(TOOL, make_run())
    run = simulate(1, steps=12)
    assert "not all logged" in missing(TOOL, changed.relog(run, kl_ref=None))
    bare = make_run(config={"beta": 0.1}, signals=run.signals.known)
    assert "advantages" in missing(TOOL, bare)


@settings(max_examples=10, derandomize=True)
@given(factor=st.floats(0.1, 10), by=st.integers(0, 1000))
def test_the_share_grows_with_kl_and_with_the_square_of_beta(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    changed: SimpleNamespace,
    factor: float,
    by: int,
) -> None:
    one = measure(TOOL, run_of(make_run, batch))["used_share"]
    by_kl = measure(TOOL, run_of(make_run, batch, kl=0.02 * factor))
    by_beta = measure(TOOL, run_of(make_run, batch, beta=0.1 * factor))
    assert by_kl["used_share"] == pytest.approx(factor * one, rel=1e-3, abs=1e-6)
    assert by_beta["used_share"] == pytest.approx(factor**2 * one, rel=1e-3, abs=1e-6)
    moved = measure(TOOL, changed.shift_steps(run_of(make_run, batch), by))
    assert moved["used_share"] == one
