"""Known figures, each recomputed by hand elsewhere, against the functions that the tools use.

What a tool's own test file already holds against numbers is not repeated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.numerics.trail import EXP_LIMIT
from firstbad.tools.reward.estimators import ESTIMATORS
from firstbad.tools.rewards import group_advantage, group_spread
from firstbad.tools.run import Capture, RolloutBatch, Run
from firstbad.tools.samples.groups import predicted_share
from synthetic.trainer import Trainer

Measure = Callable[..., dict[str, Any]]
MakeRun = Callable[..., Run]
ONE = np.zeros(8, int)


def odd_one(size: int, value: float = 1.0, rest: float = 0.0) -> np.ndarray[Any, Any]:
    """Rewards of one group of which one differs."""
    return np.array([value] + [rest] * (size - 1))


@pytest.mark.parametrize(
    ("size", "unbiased", "population"),
    [
        (4, 1.5, 1.732),
        (5, 1.789, 2.0),
        (8, 2.475, 2.646),
        (16, 3.75, 3.873),
        (32, 5.48, 5.568),
        (64, 7.875, 7.937),
    ],
)
def test_the_bound_is_reached_by_one_against_the_rest(
    size: int, unbiased: float, population: float
) -> None:
    """(G - 1)/sqrt(G), and sqrt(G - 1) with the population's deviation; eps only shrinks it."""
    rewards, group = odd_one(size), np.zeros(size, int)
    by_group = group_advantage(rewards, group, scale="group", eps=0)
    assert by_group[0] == pytest.approx(unbiased, abs=1e-3)
    assert np.abs(group_advantage(rewards, group, scale="group")).max() < unbiased
    small = next(e for n, e in ESTIMATORS.items() if "population" in n)(rewards, group, rewards)
    assert small[0] == pytest.approx(population, abs=1e-3)


def test_without_division_an_advantage_is_sigma_times_the_divided_one() -> None:
    rewards = np.array([0, 0.3, 1, 0.2, 0.9, 0, 0, 2.0])
    plain = group_advantage(rewards, ONE, scale="none")
    divided = group_advantage(rewards, ONE, scale="group", eps=0)
    assert plain == pytest.approx(group_spread(rewards, ONE)[0] * divided)
    # abs(A) <= (r_max - r_min)(G - 1)/G, reached by one against the rest.
    assert np.abs(plain).max() <= 2.0 * 7 / 8
    assert group_advantage(odd_one(8), ONE, scale="none")[0] == pytest.approx(7 / 8)


@pytest.mark.parametrize("scale", ["group", "none", "batch"])
def test_advantages_of_a_group_sum_to_nothing(scale: str) -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(5), 8)
    found = group_advantage(rng.normal(size=40), group, scale=scale)
    assert np.bincount(group, weights=found) == pytest.approx(np.zeros(5), abs=1e-12)


@pytest.mark.parametrize("unit", [0.01, 3.0, 1000.0])
def test_another_unit_of_rewards_shows_only_beside_eps(unit: float) -> None:
    """A' = c (r - mean)/(c sigma + eps); a negative unit turns the sign."""
    rewards = np.array([0, 0, 1, 0, 1, 0, 0, 0.5])
    sigma = group_spread(rewards, ONE)[0]
    centred = rewards - rewards.mean()
    found = group_advantage(unit * rewards, ONE, scale="group", eps=1e-4)
    assert found == pytest.approx(unit * centred / (unit * sigma + 1e-4))
    turned = group_advantage(-unit * rewards, ONE, scale="group", eps=1e-4)
    assert turned == pytest.approx(-found)
    assert group_advantage(unit * rewards, ONE, scale="none") == pytest.approx(unit * centred)


def test_one_outlier_moves_the_advantage_of_every_sample_of_its_group_alone() -> None:
    group = np.repeat([0, 1], 8)
    rewards = np.tile([0, 1, 0, 1, 0, 1, 0, 1.0], 2)
    more = rewards.copy()
    more[0] = 50
    before, after = (group_advantage(r, group, scale="group") for r in (rewards, more))
    assert (np.abs(after - before)[:8] > 0.1).all()
    assert after[8:] == pytest.approx(before[8:])


def test_a_spread_over_the_batch_passes_the_bound_in_sparse_batches_only() -> None:
    """One right in 100 groups of 8: 24.7 instead of 2.475; mixed difficulties stay inside."""
    group = np.repeat(np.arange(100), 8)
    sparse = np.zeros(800)
    sparse[0] = 1
    assert group_advantage(sparse, group, scale="batch").max() == pytest.approx(24.7, abs=0.1)
    rng = np.random.default_rng(1)
    mixed = (rng.random(800) < rng.random(100)[group]).astype(float)
    found = group_advantage(mixed, group, scale="batch")
    assert np.abs(found).max() < 2.475
    # Inside each group the spread of A is 1 under the group's, and varies under the batch's.
    own = group_spread(group_advantage(mixed, group, scale="group"), group)
    other = group_spread(found, group)
    varied = group_spread(mixed, group) > 0
    assert own[varied] == pytest.approx(np.ones(varied.sum()), abs=1e-3)
    assert np.ptp(other[varied]) > 0.2


@pytest.mark.parametrize(
    ("size", "informative", "naive"), [(2, 0.147, 0.298), (8, 0.366, 0.799), (16, 0.448, 0.960)]
)
def test_groups_with_contrast_where_prompts_differ_in_difficulty(
    size: int, informative: float, naive: float
) -> None:
    """Solve rates from Beta(0.177, 0.795), mean 0.182: p^G + (1-p)^G of the mean is far off."""
    rates = np.random.default_rng(2).beta(0.177, 0.795, 40_000)
    successes = np.random.default_rng(3).binomial(size, rates).astype(float)
    expected = predicted_share(successes, size)
    assert expected is not None
    assert 1 - expected == pytest.approx(informative, abs=0.012)
    alike = np.random.default_rng(4).binomial(size, 0.182, 40_000).astype(float)
    same = predicted_share(alike, size)
    assert same is not None
    assert 1 - same == pytest.approx(naive, abs=0.012)  # where the simple formula is right


def tokens_of(
    capture: Callable[..., Capture],
    q: list[float],
    pi: list[float],
    steps: int = 4,
    keep: Callable[[Any], Any] = lambda ids: ids,
) -> list[Capture]:
    """Tokens sampled from q, scored by pi."""
    log_pi = np.log(pi)
    entropy = -float(np.array(pi) @ log_pi)
    rng = np.random.default_rng(5)
    made = []
    for step in range(1, steps + 1):
        ids = keep(rng.choice(len(q), (64, 100), p=q))
        logp = log_pi[ids]
        entropies = np.full(ids.shape, entropy)
        made.append(capture(step, token_id=ids + 2, logp_new=logp, entropy=entropies))
    return made


PI = [0.5, 0.3, 0.2]


def test_a_sampler_that_is_the_policy_does_not_surprise(
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure
) -> None:
    found = measure("test_surprise", make_run(captures=tokens_of(capture, PI, PI)))
    assert abs(found["z_all"]) < 4


def test_no_surprise_is_no_proof(
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure
) -> None:
    """q = .6/.074/.326 against pi = .5/.3/.2: KL 0.165 and surprise 0."""
    q = [0.6, 0.074, 0.326]
    kl = sum(a * math.log(a / b) for a, b in zip(q, PI, strict=True))
    assert kl == pytest.approx(0.165, abs=1e-3)
    found = measure("test_surprise", make_run(captures=tokens_of(capture, q, PI)))
    assert abs(found["surprise_all"]) < 0.01
    assert found["first_bad_step"] is None
    assert found["last_good_step"] is None


def test_a_selection_of_tokens_surprises_though_the_sampler_is_right(
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure
) -> None:
    """Rows that hold few of the rare tokens, as a filter on the outcome would keep them."""

    def likely(ids: Any) -> Any:
        return ids[np.argsort((ids == 2).sum(axis=1))[:16]]

    found = measure("test_surprise", make_run(captures=tokens_of(capture, PI, PI, keep=likely)))
    assert found["z_all"] < -4


def test_k1_over_k3_is_one_on_policy_and_not_off_it(
    make_run: MakeRun, sample: Callable[..., Capture], measure: Measure
) -> None:
    on = [sample(s, seed=s, rows=256, moved=1.0) for s in range(1, 5)]
    off = [sample(s, seed=s, rows=256, moved=1.0, behind=1.0) for s in range(1, 5)]
    ratios = [measure("test_surprise", make_run(captures=c))["k1_over_k3_late"] for c in (on, off)]
    assert ratios[0] == pytest.approx(1, abs=0.15)
    assert ratios[1] < 0.2


def test_the_kl_budget_of_a_converged_policy_is_used_up(
    make_run: MakeRun, batch: Callable[..., RolloutBatch], measure: Measure
) -> None:
    """KL per sequence = E[A^2]/(2 beta^2): with A = +-1, beta 0.5 and 40 tokens 2/40 a token."""
    rows = [
        batch(s, rewards={"correct": [1, 0, 1, 0]}, advantage=[1, -1, 1, -1]) for s in range(1, 10)
    ]
    signals = {
        "kl_ref": [1 / (2 * 0.5**2) / 40] * 9,
        "completion_length_mean": [40.0] * 9,
        "reward_mean": [0.5] * 9,
    }
    run = make_run(config={"beta": 0.5}, rollouts=rows, signals=signals)
    assert measure("measure_kl_budget", run)["used_share"] == pytest.approx(1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_where_exp_ends(dtype: Any) -> None:
    """At 11.09 in float16, at 88.72 in float32 and in bfloat16, which has its exponents."""
    limit = EXP_LIMIT[np.dtype(dtype).name]
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.exp(limit * 0.999) <= np.finfo(dtype).max < np.exp(limit * 1.001)
        beyond = np.exp(dtype(limit * 1.01))
        assert np.isinf(beyond)
        # A clamp behind it hides that forward, and its slope of 0 does not undo it backward.
        assert np.minimum(beyond, dtype(10)) == 10
        assert np.isnan(beyond * dtype(0))
    assert EXP_LIMIT["bfloat16"] == EXP_LIMIT["float32"]


def test_a_sentinel_is_removed_by_selection_and_not_by_a_product() -> None:
    values, mask = np.array([1.0, -np.inf, 3.0]), np.array([1.0, 0.0, 1.0])
    with np.errstate(invalid="ignore"):
        assert np.isnan((values * mask).sum())
    assert np.where(mask > 0, values, 0.0).sum() == 4


def test_division_and_filter_act_on_disjoint_groups() -> None:
    """At 0 of 8 and 8 of 8 dividing changes nothing; anywhere else no filter fires."""
    for right in range(9):
        rewards = np.array([1.0] * right + [0.0] * (8 - right))
        divided, plain = (group_advantage(rewards, ONE, scale=s) for s in ("group", "none"))
        if group_spread(rewards, ONE)[0] == 0:
            assert right in (0, 8)
            assert divided.tolist() == plain.tolist() == [0] * 8
        else:
            assert np.abs(divided - plain).max() > 0.05


def test_a_more_accurate_variance_makes_the_residue_worse() -> None:
    """Two passes in float32 over seven times 0.95 leave a spread of 6.4e-8, not 0."""
    others = np.full(7, 0.95, np.float32)
    total = np.float32(0)
    for value in others:
        total += value
    mean = total / np.float32(7)
    squares = np.float32(0)
    for value in others:
        squares += (value - mean) ** 2
    spread = float(np.sqrt(squares / np.float32(6)))
    assert spread == pytest.approx(6.44e-8, rel=0.02)
    assert (0 - float(mean)) / (spread + 1e-6) == pytest.approx(-892_538, rel=1e-3)
    assert (others == others[0]).all()  # what decides that a group has no spread


def test_near_zero_entropy_no_z_is_proof(
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure
) -> None:
    """p = 0.9999 and 350 tokens: one rare token makes z > 5, and none of many makes the naive z
    explode. Both are on-policy; the floor of 0.1 nats and the pool keep them from being dated."""
    p, n = 0.9999, 350
    pi = np.array([p, 1 - p])
    entropy = -float(pi @ np.log(pi))
    varentropy = float(pi @ np.log(pi) ** 2) - entropy**2
    rare = np.arange(4)
    z = (-(n - rare) * np.log(p) - rare * np.log(1 - p) - n * entropy) / np.sqrt(n * varentropy)
    chance = [math.comb(n, k) * (1 - p) ** k * p ** (n - k) for k in rare.tolist()]
    assert sum(c for c, v in zip(chance, z, strict=True) if v > 5) == pytest.approx(0.036, abs=2e-3)

    def dumps(with_rare: int) -> list[Capture]:
        made = []
        for step in range(1, 13):
            ids = np.zeros((5, 70), int)
            ids.flat[:with_rare] = 1
            made.append(
                capture(
                    step,
                    token_id=ids + 2,
                    logp_new=np.log(pi)[ids],
                    entropy=np.full(ids.shape, entropy),
                )
            )
        return made

    for with_rare, sign in ((0, -1), (1, 1)):
        found = measure("test_surprise", make_run(captures=dumps(with_rare)))
        assert found["z_all"] * sign > 2
        assert 0 < found["surprise_all"] * sign < 0.1
        assert found["first_bad_step"] is None


def test_a_mean_of_the_engine_hides_its_tail(
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure
) -> None:
    """9,990 tokens that differ by 0.001 and 10 by 1: the mean is 0.002, which the rule for means
    passes. The largest shows them, and P99.9 as soon as they are more than one in a thousand."""

    def far(n: int) -> dict[str, Any]:
        gap = np.full((100, 100), 0.001)
        gap.flat[:n] = 1.0
        arrays = {
            "token_id": np.full(gap.shape, 5),
            "source": np.full(gap.shape, 3),
            "logp_old": np.full(gap.shape, -1.0),
            "logp_engine": -1.0 - gap,
        }
        return measure("compare_logprobs", make_run(captures=[capture(1, **arrays)]))

    ten = far(10)
    assert ten["mean"] == pytest.approx(0.002, abs=1e-5)
    assert ten["p99"] == pytest.approx(0.001)
    assert ten["largest"] == pytest.approx(1.0)
    eleven = far(11)
    assert eleven["mean"] == pytest.approx(0.0021, abs=1e-5)
    assert eleven["p999"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("scale", [1.0, 0.3, 8.0, 0.125])
def test_adam_cancels_a_constant_factor_of_the_gradient(scale: float) -> None:
    """A factor shows in the gradient norm and in what clipping does, hardly in the update."""

    def path(factor: float, clip: float = math.inf) -> float:
        trainer, rng = Trainer(rate=0.01), np.random.default_rng(7)
        length = 0.0
        for _ in range(50):
            gradient = factor * 0.02 * rng.normal(size=trainer.table.shape)
            norm = float(np.linalg.norm(gradient))
            length += float(np.linalg.norm(trainer.update(gradient * min(1.0, clip / norm))))
        return length

    assert path(scale) == pytest.approx(path(1.0), rel=1e-4)
    assert path(8.0, clip=0.1) == pytest.approx(path(1.0), rel=0.01)
