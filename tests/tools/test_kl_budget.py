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


def test_gain_is_told_in_spreads_of_a_step(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # 0 1 0 1 0 1 0 1 0: four differences of 1 and four of -1 about their mean 0, s = 1; a single
    # step spreads by 1/sqrt(2). First third 1/3, last 1/3: no gain.
    flat = run_of(make_run, batch, reward=[0.0, 1, 0, 1, 0, 1, 0, 1, 0])
    assert measure(TOOL, flat)["reward_gain"] == 0
    # 0 1 0 1 0 1 2 1 2: differences 1 -1 1 -1 1 1 -1 1, mean 1/4, s = sqrt(15)/4 = 0.9682, over
    # sqrt(2) 0.6847; from 1/3 to 5/3 is 1.3333/0.6847 = 1.9475.
    rising = run_of(make_run, batch, reward=[0.0, 1, 0, 1, 0, 1, 2, 1, 2])
    assert measure(TOOL, rising)["reward_gain"] == pytest.approx(1.9475, abs=1e-3)


def test_a_pinned_policy_uses_its_budget(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    # A run with beta 4 whose KL settles at E[A^2]/(2 beta^2) per sequence; E[A^2] is (G-1)/G.
    assert measure(TOOL, simulate(1))["used_share"] < 0.002
    settled = 7 / 8 / (2 * 4.0**2) / 12.5
    pinned = measure(TOOL, changed.relog(simulate(1, config={"beta": 4.0}), kl_ref=[settled] * 60))
    assert pinned["used_share"] == pytest.approx(1, abs=0.1)
    assert abs(pinned["reward_gain"]) < 3
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
