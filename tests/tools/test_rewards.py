"""Reward arithmetic: totals, group statistics, and the sizes that advantages have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.rewards import (
    group_advantage,
    group_correlation,
    group_spread,
    group_stats,
    reward_weights,
    scale_setting,
    total_reward,
)
from firstbad.tools.run import RolloutBatch, Run

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]


@pytest.mark.parametrize(
    ("rate", "right", "wrong"), [(0.9, 0.333, -3.0), (0.1, 3.0, -0.333), (0.5, 1.0, -1.0)]
)
def test_binary_rewards(rate: float, right: float, wrong: float) -> None:
    # With the population's deviation sqrt(p (1-p)): A = sqrt((1-p)/p) and -sqrt(p/(1-p)).
    # The unbiased one is sqrt(G/(G-1)) times as wide, so A is sqrt((G-1)/G) times as large.
    size = 10
    rewards = (np.arange(size) < round(rate * size)).astype(float)
    found = group_advantage(rewards, np.zeros(size, int), scale="group", eps=0.0)
    shrink = np.sqrt((size - 1) / size)
    assert found[0] == pytest.approx(shrink * right, abs=1e-3)
    assert found[-1] == pytest.approx(shrink * wrong, abs=2e-3)
    assert found.sum() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("eps", "largest"), [(0.0, 3.75), (1e-6, 3.61), (1e-4, 0.75)])
def test_eps_decides_where_the_spread_is_tiny(eps: float, largest: float) -> None:
    # s = 1e-4/sqrt(16) = 2.5e-5: 9.375e-5/(2.5e-5 + eps)
    rewards = np.full(16, 0.5)
    rewards[0] = 0.5001
    found = group_advantage(rewards, np.zeros(16, int), scale="group", eps=eps)
    assert found[0] == pytest.approx(largest, abs=0.01)


def test_ways_of_scaling() -> None:
    # Two groups of two: 1 0 | 3 1. Centred 0.5 -0.5 | 1 -1; group s = 0.7071 and 1.4142;
    # over the batch: mean 1.25, squares 0.0625 + 1.5625 + 3.0625 + 0.0625 = 4.75, s = 1.2583.
    rewards, group = np.array([1.0, 0, 3, 1]), np.array([0, 0, 1, 1])
    by_group = group_advantage(rewards, group, scale="group", eps=0)
    by_batch = group_advantage(rewards, group, scale="batch", eps=0)
    plain = group_advantage(rewards, group, scale="none", eps=0)
    assert plain.tolist() == [0.5, -0.5, 1, -1]
    assert by_group == pytest.approx([0.70711, -0.70711, 0.70711, -0.70711], abs=1e-5)
    assert by_batch == pytest.approx([0.39736, -0.39736, 0.79472, -0.79472], abs=1e-5)


@settings(max_examples=40, derandomize=True)
@given(
    st.integers(2, 16),
    st.integers(0, 10**6),
    st.floats(0.01, 100),
    st.sampled_from(["normal", "cauchy", "binary"]),
)
def test_no_advantage_is_beyond_the_bound(size: int, seed: int, scale: float, kind: str) -> None:
    rng = np.random.default_rng(seed)
    draw = {
        "normal": rng.normal(size=size),
        "cauchy": rng.standard_cauchy(size),
        "binary": (rng.random(size) < 0.3).astype(float),
    }[kind]
    found = group_advantage(scale * draw, np.zeros(size, int), scale="group")
    assert np.abs(found).max() <= (size - 1) / np.sqrt(size) + 1e-9
    doubled = group_advantage(-scale * draw, np.zeros(size, int), scale="group")
    assert doubled == pytest.approx(-found)


def test_totals(make_run: MakeRun, batch: MakeBatch) -> None:
    nan = float("nan")
    rows = batch(rewards={"a": [1, 2, nan, nan], "b": [10, nan, 30, nan]})
    run = make_run(config={"reward_weights": [1.0, 0.5]})
    # 1 + 0.5 x 10; an unscored part counts as 0; a row that no part scored stays unknown.
    assert total_reward(run, rows) == pytest.approx([6, 2, 15, nan], nan_ok=True)
    assert total_reward(run, batch(rewards={"a": [1, 2]}, total=[7, 8])) == pytest.approx([7, 8])
    assert total_reward(make_run(config={"reward_weights": [1.0]}), rows) is None
    assert total_reward(make_run(), rows) is None, "weights are never guessed"
    assert total_reward(make_run(), batch(rewards={"a": [1, 2]})) == pytest.approx([1, 2])


def test_weights_and_scale_are_read_or_unknown(make_run: MakeRun) -> None:
    assert reward_weights(make_run(config={"beta": 0.0}), 2) == pytest.approx([1, 1])
    assert reward_weights(make_run(), 1) == pytest.approx([1])
    assert reward_weights(make_run(config={"reward_weights": [2, 3]}), 2) == pytest.approx([2, 3])
    assert scale_setting(make_run()) is None
    assert scale_setting(make_run(config={"beta": 0.0})) == "group"
    assert scale_setting(make_run(config={"scale_rewards": False})) == "none"
    assert scale_setting(make_run(config={"scale_rewards": "batch"})) == "batch"


def test_group_statistics() -> None:
    # Groups 7: 1 3 (mean 2, s sqrt(2)); 2: 5 (alone, spread 0).
    found = group_stats(np.array([1.0, 5, 3]), np.array([7, 2, 7]))
    assert found.size.tolist() == [1, 2]
    assert found.mean.tolist() == [5, 2]
    assert found.low.tolist() == [5, 1]
    assert found.high.tolist() == [5, 3]
    assert found.spread == pytest.approx([0, np.sqrt(2)])
    assert group_spread(np.array([1.0, 5, 3]), np.array([7, 2, 7])) == pytest.approx(found.spread)


def test_group_correlation() -> None:
    # Inside each group y falls as x rises, though over the batch it rises with x.
    x, y = np.array([1.0, 2, 11, 12, 5, 5]), np.array([5.0, 4, 15, 14, 1, 2])
    found = group_correlation(x, y, np.array([0, 0, 1, 1, 2, 2]))
    assert found[:2] == pytest.approx([-1, -1])
    assert np.isnan(found[2])
