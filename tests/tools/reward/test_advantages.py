"""Advantages recomputed from rewards: bounds, and which other way of computing was used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import FloatArray, IntArray, RolloutBatch, Run

TOOL = "recompute_advantages"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Missing = Callable[..., str]
Advantages = Callable[[FloatArray, IntArray], FloatArray]

CONFIG = {"scale_rewards": "group"}


def test_one_right_of_four(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # mean 1/4; squares 0.75^2 + 3 x 0.25^2 = 0.75; unbiased variance 0.75/3 = 0.25, s = 0.5;
    # A = 0.75/(0.5 + 1e-4) = 1.4997 and -0.25/0.5001 = -0.4999; they sum to 0.
    # The bound is (4 - 1)/sqrt(4) = 1.5.
    used = [1.4997, -0.4999, -0.4999, -0.4999]
    run = make_run(
        config=CONFIG, rollouts=[batch(rewards={"correct": [1, 0, 0, 0]}, advantage=used)]
    )
    found = measure(TOOL, run)
    assert (found["n_rows"], found["n_groups"], found["group_size"]) == (4, 1, 4)
    assert found["share_rows_differ"] == 0
    assert found["largest"] == 1.4997
    assert found["bound"] == 1.5
    assert found["over_bound"] == pytest.approx(-0.0003)
    assert found["group_sum_largest"] == 0
    assert found["spread_median"] == 0.5
    assert found["first_bad_step"] is None


# (G - 1)/sqrt(G)
@pytest.mark.parametrize(("size", "bound"), [(4, 1.5), (8, 2.475), (16, 3.75)])
def test_nothing_in_a_group_is_farther_out_than_the_bound(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    advantages: Advantages,
    size: int,
    bound: float,
) -> None:
    rewards = np.eye(1, size)[0]
    used = advantages(rewards, np.zeros(size, int))
    run = make_run(config=CONFIG, rollouts=[batch(rewards={"correct": rewards}, advantage=used)])
    found = measure(TOOL, run)
    assert found["bound"] == pytest.approx(bound, abs=5e-4)
    assert found["largest"] == pytest.approx(bound, abs=2e-3)
    assert found["over_bound"] < 0
    run = make_run(
        config=CONFIG, rollouts=[batch(rewards={"correct": rewards}, advantage=1.2 * used)]
    )
    assert measure(TOOL, run)["over_bound"] > 0.2


def test_a_hair_of_spread_with_full_size_advantages(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, advantages: Advantages
) -> None:
    # 15 rewards of 0.5 and one of 0.5001, G = 16: s = 1e-4/4 = 2.5e-5, so the odd one has
    # A = (15/16) 1e-4/(2.5e-5 + 1e-4) = 0.75, and 3.75 without eps.
    rewards = np.full(16, 0.5)
    rewards[0] = 0.5001
    used = advantages(rewards, np.zeros(16, int))
    assert used[0] == pytest.approx(0.75, abs=1e-3)
    run = make_run(config=CONFIG, rollouts=[batch(rewards={"correct": rewards}, advantage=used)])
    found = measure(TOOL, run)
    assert (found["tiny_spread_groups"], found["tiny_spread_share"]) == (1, 1)
    assert found["share_rows_differ"] == 0


@pytest.mark.parametrize("onset", [1, ONSET])
def test_scores_with_a_hair_of_noise_are_dated(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, advantages: Advantages, onset: int
) -> None:
    """Every second group is all right, and from the onset on by a noise of 1e-4."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(4), 4)
    rows = []
    for step in range(1, 61):
        rewards = np.where(group % 2, 1.0, rng.integers(0, 2, 16))
        if step >= onset:
            rewards = rewards + 1e-4 * rng.standard_normal(16)
        used = advantages(rewards, group)
        rows.append(batch(step, rewards={"correct": rewards}, size=4, advantage=used))
    found = measure(TOOL, make_run(config=CONFIG, rollouts=rows))
    assert found["first_bad_step"] == onset
    assert found["last_good_step"] == (None if onset == 1 else onset - 1)
    assert found["from_start"] == (onset == 1)
    assert found["share_rows_differ"] == 0
    # Without the noise, or where few groups have it, nothing is dated.
    few = [b for b in rows if b.step < onset or b.step == ONSET]
    if onset > 1:
        assert measure(TOOL, make_run(config=CONFIG, rollouts=few))["first_bad_step"] is None


def test_float32_noise_in_equal_rewards_is_no_spread(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, advantages: Advantages
) -> None:
    rewards = np.array([np.float32(0.1) * 3, np.float32(0.3), 0.3, 0.3], float)
    assert np.ptp(rewards) > 1e-9
    used = advantages(rewards, np.zeros(4, int))
    run = make_run(config=CONFIG, rollouts=[batch(rewards={"correct": rewards}, advantage=used)])
    found = measure(TOOL, run)
    assert found["tiny_spread_groups"] == 0
    assert found["share_rows_differ"] == 0


def negate(d: SimpleNamespace) -> None:
    d.advantage = -d.advantage


def neighbour(d: SimpleNamespace) -> None:
    d.advantage = np.roll(d.advantage, 1)


def whole_batch(d: SimpleNamespace) -> None:
    d.advantage = (d.total - d.total.mean()) / (np.std(d.total, ddof=1) + 1e-4)


def undivided(d: SimpleNamespace) -> None:
    for g in range(4):
        d.advantage[d.group == g] = d.total[d.group == g] - d.total[d.group == g].mean()


@pytest.mark.parametrize(
    ("fault", "explains"),
    [
        (negate, "negated"),
        (neighbour, "shifted"),
        (whole_batch, "batch"),
        (undivided, "unscaled"),
    ],
)
def test_each_other_way_is_named_and_dated(
    simulate: MakeRun,
    measure: Measure,
    fault: Callable[[SimpleNamespace], None],
    explains: str,
) -> None:
    def train(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            fault(d)

    found = measure(TOOL, simulate(1, train=train))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert not found["from_start"]
    assert found["share_rows_differ_after"] > 0.3
    fits = {k: found[f"{k}_fits"] for k in ("negated", "shifted", "batch", "unscaled")}
    assert fits.pop(explains) > 0.98
    assert max(fits.values()) < 0.3


def test_wrong_from_the_first_step(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, steps=12, train=negate))
    assert found["from_start"]
    assert (found["last_good_step"], found["first_bad_step"]) == (None, 1)


@pytest.mark.parametrize(
    ("setting", "fault"), [("batch", None), ("none", undivided), (False, undivided)]
)
def test_the_run_s_own_setting_is_read_first(
    simulate: MakeRun,
    measure: Measure,
    setting: object,
    fault: Callable[[SimpleNamespace], None] | None,
) -> None:
    def train(d: SimpleNamespace) -> None:
        undivided(d)
        if fault is None:
            d.advantage = d.advantage / (np.std(d.total, ddof=1) + 1e-4)

    run = simulate(2, steps=12, train=train, config={"scale_rewards": setting})
    found = measure(TOOL, run)
    assert found["share_rows_differ"] == 0
    assert found["bound"] is None


def test_one_odd_row_in_a_step_is_no_onset(simulate: MakeRun, measure: Measure) -> None:
    def train(d: SimpleNamespace) -> None:
        if d.step == ONSET:
            d.advantage[5] += 0.5

    found = measure(TOOL, simulate(1, train=train))
    assert found["share_rows_differ"] == pytest.approx(1 / (60 * 32), abs=1e-6)
    assert found["first_bad_step"] is None


def test_without_data(make_run: MakeRun, batch: MakeBatch, missing: Missing) -> None:
    rows = batch(rewards={"correct": [1, 0]})
    assert "advantages" in missing(TOOL, make_run(config=CONFIG))
    assert "advantages" in missing(TOOL, make_run(config=CONFIG, rollouts=[rows]))
    rows = batch(rewards={"correct": [1, 0]}, advantage=[0.7, -0.7])
    by_part = {"multi_objective_aggregation": "normalize_then_sum"}
    assert "part by part" in missing(TOOL, make_run(config=by_part, rollouts=[rows]))


def population(d: SimpleNamespace) -> None:
    for g in range(4):
        rows = d.total[d.group == g]
        d.advantage[d.group == g] = (rows - rows.mean()) / (rows.std() + 1e-8)


def others(d: SimpleNamespace) -> None:
    for i in range(len(d.total)):
        rest = [d.total[k] for k in np.flatnonzero(d.group == d.group[i]) if k != i]
        d.advantage[i] = d.total[i] - sum(rest) / len(rest)


def batch_scale(d: SimpleNamespace) -> None:
    undivided(d)
    d.advantage = d.advantage / (d.advantage.std() + 1e-8)


def noise(d: SimpleNamespace) -> None:
    """What a critic would leave: no function of the rewards."""
    d.advantage = np.random.default_rng(d.step).normal(0.5, 1.0, len(d.total))


@pytest.mark.parametrize("way", [population, others, batch_scale, undivided, whole_batch])
def test_a_known_way_that_no_setting_names_is_the_run_s_own(
    simulate: MakeRun, measure: Measure, way: Callable[[SimpleNamespace], None]
) -> None:
    found = measure(TOOL, simulate(2, steps=20, train=way, config={"scale_rewards": None}))
    assert (found["estimator_known"], found["estimator_named"]) == (True, False)
    assert found["share_rows_differ"] == 0
    # sqrt(G - 1) = 2.646 for G = 8: the bound is that of the spread in use.
    assert found["bound"] == (pytest.approx(2.6458, abs=1e-4) if way is population else None)


def test_a_change_inside_the_run_is_seen_whatever_the_way_was(
    simulate: MakeRun, measure: Measure
) -> None:
    def train(d: SimpleNamespace) -> None:
        others(d)
        if d.step >= ONSET:
            negate(d)

    found = measure(TOOL, simulate(2, train=train, config={"scale_rewards": None}))
    assert not found["estimator_named"]
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["negated_fits"] == found["best_fit"] > 0.98


def test_advantages_that_no_known_way_gives(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(2, steps=20, train=noise, config={"scale_rewards": None}))
    assert not found["estimator_known"]
    assert found["bound"] is None
    assert found["group_sum_largest"] > 0.1
    assert found["group_method"]
    critic = {"scale_rewards": None, "vf_coef": 0.1}
    assert not measure(TOOL, simulate(2, steps=20, train=noise, config=critic))["group_method"]


@pytest.mark.parametrize(
    ("name", "way", "differ"),
    [
        ("rloo", others, False),
        ("rloo", population, True),
        ("reinforce_plus_plus_baseline", batch_scale, False),
        ("reinforce_plus_plus_baseline", whole_batch, True),
        ("grpo", population, False),
        ("grpo", undivided, True),
    ],
)
def test_a_named_estimator_is_held_against_the_rows(
    simulate: MakeRun,
    measure: Measure,
    name: str,
    way: Callable[[SimpleNamespace], None],
    differ: bool,
) -> None:
    config = {"scale_rewards": None, "adv_estimator": name}
    found = measure(TOOL, simulate(2, steps=20, train=way, config=config))
    assert found["estimator_named"]
    assert (found["share_rows_differ"] > 0.3) is differ


def test_what_cannot_be_recomputed_from_rewards(simulate: MakeRun, missing: Missing) -> None:
    for setting in ({"adv_estimator": "gae"}, {"use_kl_in_reward": True}):
        assert "advantages" in missing(TOOL, simulate(2, steps=6, config=setting))


def test_rows_of_groups_that_are_written_in_part_are_left_out(
    simulate: MakeRun, measure: Measure, missing: Missing, changed: SimpleNamespace
) -> None:
    """A sample of a step's rows: what takes the whole group or batch is not recomputed."""
    run = simulate(2, steps=20, config={"generation_batch_size": 32})
    half = changed.rebatch(run, lambda b: changed.reorder(b, list(range(20))))  # groups 8, 8, 4
    found = measure(TOOL, half)
    assert (found["n_rows"], found["share_rows_differ"]) == (20 * 16, 0)
    one_each = changed.rebatch(run, lambda b: changed.reorder(b, [0, 8, 16, 24]))
    assert "advantages" in missing(TOOL, one_each)
    over_batch = simulate(
        2, steps=20, config={"generation_batch_size": 32, "scale_rewards": "batch"}
    )
    half = changed.rebatch(over_batch, lambda b: changed.reorder(b, list(range(16))))
    assert "only part" in missing(TOOL, half)


@settings(max_examples=8, derandomize=True)
@given(order=st.permutations(range(4)), factor=st.floats(0.1, 1000))
def test_neither_the_order_of_groups_nor_the_scale_of_rewards_matters(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    factor: float,
) -> None:
    run = simulate(3, steps=10, train=lambda d: negate(d) if d.step >= 6 else None)
    before = measure(TOOL, run)
    moved = changed.rebatch(run, lambda b: changed.reorder_groups(b, order))
    assert {**measure(TOOL, moved), "shifted_fits": 0} == {**before, "shifted_fits": 0}

    def scale(b: RolloutBatch) -> RolloutBatch:
        return replace(b, rewards={k: factor * v for k, v in b.rewards.items()})

    scaled = measure(TOOL, changed.rebatch(run, scale))
    assert scaled["spread_median"] == pytest.approx(factor * before["spread_median"], rel=1e-5)
    for name in ("first_bad_step", "share_rows_differ", "negated_fits", "largest", "bound"):
        assert scaled[name] == before[name]


def leave_one_out(rewards: list[float]) -> list[float]:
    """Mean and spread of the others, by sums in float32, eps 1e-6; no division by 0."""
    out = []
    for i, own in enumerate(rewards):
        others = np.array(rewards[:i] + rewards[i + 1 :], np.float32)
        n = np.float32(len(others))
        mean, square = others.sum() / n, (others * others).sum() / n
        spread = np.sqrt(np.maximum((square - mean * mean) * n / (n - 1), 0))
        away = np.float32(own) - mean
        out.append(float(away / (spread + np.float32(1e-6)) if spread > 0 else away))
    return out


def groups_of(batch: MakeBatch, poisoned: int, rewards: list[float]) -> RolloutBatch:
    """Three more groups with contrast, so that the estimator is known from the others."""
    plain = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    rows = [rewards if g == poisoned else plain for g in range(4)]
    return batch(
        1,
        rewards={"correct": sum(rows, [])},
        advantage=[a for group in rows for a in leave_one_out(group)],
        size=8,
    )


def test_the_residue_of_a_leave_one_out_spread(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # The others of row 0 are 0.95 seven times; in float32 their spread comes out as 4.567e-4, and
    # -0.95 / (4.567e-4 + 1e-6) = -2075.4.
    rewards = [0.0] + [0.95] * 7
    assert leave_one_out(rewards)[0] == pytest.approx(-2075.4, abs=0.05)
    config = {"advantage_estimator": "rloo"}
    found = measure(TOOL, make_run(config=config, rollouts=[groups_of(batch, 2, rewards)]))
    assert (found["residue_rows"], found["residue_largest"]) == (1, pytest.approx(2075.4, abs=0.05))
    assert (found["first_bad_step"], found["estimator_known"]) == (1, True)


@pytest.mark.parametrize("pay", [0.5, 1.0])
def test_rewards_that_are_exact_in_binary_leave_no_residue(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, pay: float
) -> None:
    config = {"advantage_estimator": "rloo"}
    rows = groups_of(batch, 2, [0.0] + [pay] * 7)
    found = measure(TOOL, make_run(config=config, rollouts=[rows]))
    assert (found["residue_rows"], found["share_rows_differ"]) == (0, 0)
    assert found["first_bad_step"] is None


def test_a_group_spread_has_no_residue(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, advantages: Advantages
) -> None:
    """One odd row of eight: -2.475, its bound."""
    rewards = np.array([0.0] + [0.95] * 7)
    used = advantages(rewards, np.zeros(8, int))
    run = make_run(config=CONFIG, rollouts=[batch(rewards={"correct": rewards}, advantage=used)])
    assert measure(TOOL, run)["residue_rows"] == 0


def test_the_other_denominator_of_the_spread(simulate: MakeRun, measure: Measure) -> None:
    """From a step on squares are divided by G instead of G - 1: sqrt(8/7) = 1.069 times as far."""

    def population(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            d.advantage = d.advantage * np.sqrt(8 / 7)

    found = measure(TOOL, simulate(3, train=population))
    assert found["first_bad_step"] == ONSET
    assert found["ddof_fits"] > 0.9
    assert found["share_rows_differ_after"] > 0.5
    assert max(found[f"{name}_fits"] for name in ("batch", "shifted", "negated")) < 0.5


def test_interleaved_groups_reshaped_as_if_contiguous(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # Easy prompt 1,1,1,1 and hard one 0,0,0,1, stored in turns. Right: 0 for the easy one, -0.25
    # three times and 0.75 for the hard one; reshaped in fours: rows 1 0 1 0 and 1 0 1 1.
    rewards = [1, 0, 1, 0, 1, 0, 1, 1]
    wrong = [0.5, -0.5, 0.5, -0.5, 0.25, -0.75, 0.25, 0.25]
    right = [0.0, -0.25, 0.0, -0.25, 0.0, -0.25, 0.0, 0.75]
    config = {"scale_rewards": "none", "num_generations": 4}

    def found(used: list[float]) -> dict[str, Any]:
        rows = batch(rewards={"correct": rewards}, advantage=used, group=[0, 1] * 4)
        return measure(TOOL, make_run(config=config, rollouts=[rows]))

    assert found(wrong)["share_rows_differ"] == 1
    assert found(wrong)["group_sum_largest"] == pytest.approx(0.375)
    assert found(right)["share_rows_differ"] == 0


def test_a_negative_scale_turns_the_sign(simulate: MakeRun, measure: Measure) -> None:
    """Rewards times c < 0 before the division: A' = -A."""

    def negative(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            d.advantage = -d.advantage

    found = measure(TOOL, simulate(3, train=negative))
    assert (found["first_bad_step"], found["negated_fits"]) == (ONSET, 1)


def test_cut_rows_that_carry_no_advantage_count_in_no_group(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # Of 1, 0, 0 the mean is 1/3; squares 4/9 + 2/9 = 2/3, s = 0.5774: A = 1.1545, -0.5773.
    rewards, finish = {"correct": [1, 0, 0, 1]}, ["stop", "stop", "stop", "length"]

    def differ(last: float) -> float:
        own = [1.1545, -0.5773, -0.5773, last]
        steps = [batch(s, rewards=rewards, advantage=own, finish=finish) for s in range(1, 9)]
        share = measure(TOOL, make_run(config=CONFIG, rollouts=steps))["share_rows_differ"]
        assert isinstance(share, float)
        return share

    assert differ(0) == 0
    assert differ(0.3) == 0, "what is left out trains nothing, whatever stands beside it"
