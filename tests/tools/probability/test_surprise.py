"""Surprise of sampled tokens: 0 when the sampler is the trainer's policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Capture, Run, Vocabulary

TOOL = "test_surprise"

MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]
Pools = Callable[..., Run]


@pytest.fixture(name="pools", scope="session")
def _pools(make_run: MakeRun, sample: MakeCapture, words: Vocabulary) -> Pools:
    """A run of captures every five steps; `after` are the settings of the sampler from 30 on."""

    def build(seed: int = 0, n: int = 10, rows: int = 64, **after: Any) -> Run:
        made = [
            sample(s, seed=100 * seed + s, rows=rows, **(after if s >= 30 else {}))
            for s in range(5, 5 * n + 1, 5)
        ]
        return make_run(captures=made, vocabulary=words)

    return build


def test_hand_computed_surprise(make_run: MakeRun, capture: MakeCapture, measure: Measure) -> None:
    # A fair coin: entropy ln 2 everywhere, log-prob -ln 2: surprise 0 for every token. In the last
    # two of four captures log-prob is -ln 2 - 0.3: surprise 0.3; over all 0.15. Logp_ref lies 0.1
    # above in the first two: x = -0.1, k1/k3 = -0.1/(e^0.1 - 1.1) = -19.3 by the formula.
    half = np.log(2)

    def made(step: int, more: float) -> Capture:
        flat = np.ones((10, 100))
        return capture(
            step,
            token_id=5 * flat,
            logp_new=-(half + more) * flat,
            logp_ref=(0.1 - half - more) * flat,
            entropy=half * flat,
        )

    run = make_run(captures=[made(s, 0.0 if s < 3 else 0.3) for s in (1, 2, 3, 4)])
    found = measure(TOOL, run)
    assert (found["n_captures"], found["n_tokens"]) == (4, 4000)
    assert found["surprise_all"] == pytest.approx(0.15, abs=1e-6)
    assert (found["surprise_early"], found["surprise_late"]) == pytest.approx((0, 0.3), abs=1e-6)
    assert found["largest"] == found["signed_largest"] == pytest.approx(0.3, abs=1e-6)
    assert found["entropy_mean"] == pytest.approx(half, abs=1e-6)
    assert found["k3_late"] == pytest.approx(np.exp(0.1) - 1.1, abs=1e-6)
    assert found["k1_over_k3_late"] == pytest.approx(-0.1 / (np.exp(0.1) - 1.1), rel=1e-3)
    assert (found["quiet_step"], found["first_bad_step"]) == (2, 3)
    assert found["last_good_step"] is None, "a quiet test is only necessary: no step is good by it"
    assert found["sampled"]


@pytest.mark.parametrize("seed", range(6))
def test_an_on_policy_sampler_does_not_surprise(pools: Pools, measure: Measure, seed: int) -> None:
    found = measure(TOOL, pools(seed))
    assert found["n_tokens"] > 8_000
    assert abs(found["surprise_all"]) < 0.03
    assert found["largest"] < 0.1
    assert abs(found["z_all"]) < 4
    assert found["k1_over_k3_late"] == pytest.approx(1, abs=0.35)
    assert abs(found["kl_gap_late"]) < 0.04


def test_the_mean_over_many_on_policy_runs_is_zero(pools: Pools, measure: Measure) -> None:
    """400,000 tokens: the mean lies within 0.01 nats, and z is about standard normal."""
    found = [measure(TOOL, pools(seed, n=4, rows=400)) for seed in range(20, 36)]
    assert abs(np.mean([f["surprise_all"] for f in found])) < 0.01
    assert 0.4 < np.std([f["z_all"] for f in found]) < 1.8


@pytest.mark.parametrize("seed", range(3))
def test_a_hotter_sampler_is_dated(pools: Pools, measure: Measure, seed: int) -> None:
    found = measure(TOOL, pools(seed, temperature=1.6))
    # On a policy of about 1.8 nats temperature 1.6 adds more than half a nat a token.
    assert found["surprise_late"] > 0.4
    assert abs(found["surprise_early"]) < 0.1
    assert found["signed_largest"] == found["surprise_late"]
    assert found["z_largest"] > 10
    assert (found["quiet_step"], found["first_bad_step"]) == (25, 30)
    assert found["growth"] == pytest.approx(1, abs=0.2), "a setting, and no drift"
    assert found["k1_over_k3_late"] < 0.5


def test_a_sharper_sampler_has_the_other_sign(pools: Pools, measure: Measure) -> None:
    found = measure(TOOL, pools(1, temperature=0.5))
    assert found["surprise_late"] < -0.4
    assert found["signed_largest"] < 0 < found["largest"]
    assert found["first_bad_step"] == 30


def tail_cut(capture: MakeCapture, step: int, least: float) -> Capture:
    """Tokens of four words with 0.5, 0.33, 0.15 and 0.02, those below `least` never drawn.

    Training has taken the last word from 0.12 in the reference to 0.02; without it x = log(p/p_ref)
    is 0.105, 0.129 or 0.069: k1 = 0.108, k3 = 0.006.
    """
    policy = np.array([0.5, 0.33, 0.15, 0.02])
    reference = np.array([0.45, 0.29, 0.14, 0.12])
    drawn = np.where(policy >= least, policy, 0.0)
    rng = np.random.default_rng(step)
    token = rng.choice(4, (64, 24), p=drawn / drawn.sum())
    entropy = float(-(policy * np.log(policy)).sum())
    return capture(
        step,
        token_id=token + 5,
        logp_new=np.log(policy)[token],
        logp_ref=np.log(reference)[token],
        entropy=np.full(token.shape, entropy),
    )


def test_a_cut_tail_below_the_floor_is_told_by_two_tests_together(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    made = [tail_cut(capture, s, 0.1 if s >= 30 else 0.0) for s in range(5, 61, 5)]
    found = measure(TOOL, make_run(captures=made, vocabulary=words))
    # Surprise: E_q[-log p] - H = 0.997/0.98 - 1.076 = -0.058 nats, below the floor of 0.1.
    assert found["signed_largest"] == pytest.approx(-0.058, abs=0.015)
    assert found["z_largest"] > 8
    assert found["k1_over_k3_late"] == pytest.approx(0.108 / 0.006, rel=0.1)
    assert found["kl_gap_z"] < -8
    assert (found["quiet_step"], found["first_bad_step"]) == (25, 30)
    whole = [tail_cut(capture, s, 0.0) for s in range(5, 61, 5)]
    found = measure(TOOL, make_run(captures=whole, vocabulary=words))
    assert found["largest"] < 0.03
    assert found["first_bad_step"] is None


def short(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, seed: int, *bad: int, **how: Any
) -> Run:
    """14 captures of about 340 tokens every ten steps, the ones at `bad` by another sampler."""
    made = [
        sample(s, seed=1000 * seed + s, rows=24, **(how if s in bad else {}))
        for s in range(10, 141, 10)
    ]
    return make_run(captures=made, vocabulary=words)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("bad", "ends"), [((130, 140), False), ((60, 70, 80), True), ((10, 20), True)]
)
def test_a_short_stretch_is_read_by_its_chance(
    make_run: MakeRun,
    sample: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    seed: int,
    bad: tuple[int, ...],
    ends: bool,
) -> None:
    """Fewer tokens than a pool needs, too far off for chance."""
    found = measure(TOOL, short(make_run, sample, words, seed, *bad, temperature=1.6))
    assert found["stretch_tokens"] < 1500
    assert found["stretch_chance"] < 1e-3
    assert found["stretch_surprise"] > 0.2
    assert found["stretch_ends"] is ends
    assert not found["gradual"]
    if bad[0] == 10:
        assert found["from_start"]
    else:
        assert found["quiet_step"] < bad[0] <= found["first_bad_step"] <= bad[-1]
        assert found["first_bad_step"] - found["quiet_step"] <= 20


def test_no_stretch_of_an_on_policy_run_stands_out(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    found = [measure(TOOL, short(make_run, sample, words, seed)) for seed in range(30)]
    assert not any(f["stretch_alone"] for f in found)
    assert min(f["stretch_chance"] for f in found) > 1e-3


def test_a_short_stretch_without_its_tail_is_told_with_k1_and_k3(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    """Surprise of -0.058 nats, below the floor, and of the 1,500 tokens of one capture."""

    def cut_at(*bad: int) -> dict[str, Any]:
        made = [tail_cut(capture, s, 0.1 if s in bad else 0.0) for s in range(5, 61, 5)]
        return measure(TOOL, make_run(captures=made, vocabulary=words))

    found = cut_at(25, 30, 35, 40)
    assert found["stretch_surprise"] == pytest.approx(-0.058, abs=0.015)
    assert found["stretch_k1_over_k3"] == pytest.approx(0.108 / 0.006, rel=0.1)
    assert (found["stretch_alone"], found["stretch_ends"]) == (True, True)
    assert (found["quiet_step"], found["first_bad_step"]) == (20, 25)
    assert not cut_at()["stretch_alone"]


def test_a_setting_of_the_last_two_captures_is_no_drift(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    for seed in range(3):
        made = [
            sample(s, seed=100 * seed + s, rows=256, temperature=1.6 if s > 90 else 1.0)
            for s in range(10, 111, 10)
        ]
        found = measure(TOOL, make_run(captures=made, vocabulary=words))
        assert (found["gradual"], found["growth"]) == (False, 1)
        assert (found["quiet_step"], found["first_bad_step"]) == (90, 100)


def test_weights_that_part_more_and_more(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    found = measure(TOOL, stuck(make_run, sample, words, pace=75))
    assert found["growth"] > 1.4
    assert found["surprise_late"] > 0.3
    assert found["kl_gap_z"] > 3
    assert found["k1_over_k3_late"] < 0
    assert found["drift_onset"] == pytest.approx(25, abs=10)
    assert found["quiet_step"] <= found["drift_onset"] < found["first_bad_step"]


def stuck(
    make_run: MakeRun,
    sample: MakeCapture,
    words: Vocabulary,
    pace: float,
    onset: int = 25,
    seed: int = 0,
) -> Run:
    """The sampler keeps the weights of the onset; training moves on by one unit in `pace` steps."""
    made = [
        sample(s, seed=1000 * seed + s, moved=s / pace, behind=max(0.0, (s - onset) / pace))
        for s in range(5, 101, 5)
    ]
    return make_run(captures=made, vocabulary=words)


@pytest.mark.parametrize("onset", [10, 25, 50])
@pytest.mark.parametrize("pace", [25, 50, 75, 100, 150])
def test_the_bracket_of_a_drift_holds_its_onset(
    make_run: MakeRun,
    sample: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    pace: float,
    onset: int,
) -> None:
    for seed in range(3):
        found = measure(TOOL, stuck(make_run, sample, words, pace, onset, seed))
        assert found["gradual"]
        assert found["growth"] >= 2
        assert onset == 10 or not found["from_start"], "two captures are too few to be quiet"
        if not found["from_start"]:
            assert (found["quiet_step"] or 0) <= onset < found["first_bad_step"]
        assert found["first_bad_step"] - onset <= 25, "a bracket that holds anything says nothing"


def test_weights_that_part_from_the_first_step_on(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    for pace in (25, 75):
        found = measure(TOOL, stuck(make_run, sample, words, pace, onset=0))
        assert (found["quiet_step"], found["first_bad_step"], found["from_start"]) == (
            None,
            5,
            True,
        )


def test_a_drift_in_few_tokens(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    """Too few for two pools, enough for one and for a fit."""
    made = [
        sample(s, seed=s, rows=14, moved=s / 15, behind=max(0.0, (s - 20) / 15))
        for s in range(5, 61, 5)
    ]
    found = measure(TOOL, make_run(captures=made, vocabulary=words))
    assert found["n_tokens"] < 3000
    assert found["surprise_late"] is None
    assert found["gradual"]
    assert (found["quiet_step"] or 0) <= 20 < found["first_bad_step"]


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.4, 2.0])
@pytest.mark.parametrize("pace", [40, 300])
def test_a_setting_is_no_drift_however_far_training_goes(
    make_run: MakeRun,
    sample: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    temperature: float,
    pace: float,
) -> None:
    """The gap grows here too, since the policy leaves its reference; the surprise does not."""
    for seed in range(2):
        made = [
            sample(
                s, seed=1000 * seed + s, moved=s / pace, temperature=temperature if s >= 30 else 1
            )
            for s in range(5, 101, 5)
        ]
        found = measure(TOOL, make_run(captures=made, vocabulary=words))
        assert found["growth"] == 1
        assert not found["gradual"]
        assert (found["quiet_step"], found["first_bad_step"]) == (25, 30)


def test_hot_from_the_start(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    made = [sample(s, seed=s, temperature=1.6) for s in range(5, 51, 5)]
    found = measure(TOOL, make_run(captures=made, vocabulary=words))
    assert found["surprise_all"] > 0.3
    assert found["surprise_early"] > 0.3
    assert found["surprise_late"] > 0.3


def test_hot_from_the_start_is_dated_at_the_start(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    for seed in range(4):
        made = [sample(s, seed=100 * seed + s, temperature=1.6) for s in range(5, 51, 5)]
        found = measure(TOOL, make_run(captures=made, vocabulary=words))
        assert (found["quiet_step"], found["first_bad_step"]) == (None, 5)


@pytest.mark.parametrize(
    ("kl", "at_forks", "at_others", "follows"),
    [
        (0.4, 0.0, 0.3, True),
        (0.04, 0.0, 0.3, False),
        (0.4, 0.3, 0.2, False),
        (0.4, 0.0, -0.3, False),
        (None, 0.0, 0.3, False),
    ],
    ids=["after KL grew", "KL is small", "forks show it, as under heat", "sharper", "no KL logged"],
)
def test_a_late_surprise_that_goes_with_the_speed_of_the_policy(
    make_run: MakeRun,
    capture: MakeCapture,
    measure: Measure,
    kl: float | None,
    at_forks: float,
    at_others: float,
    follows: bool,
) -> None:
    """Two in five tokens are forks of two nats. Surprise begins at 60, KL is large from 35 on."""
    fork = np.arange(100) % 5 < 2
    entropy = np.where(fork, 2.0, 0.5) * np.ones((4, 1))

    def made(step: int) -> Capture:
        more = np.where(fork, at_forks, at_others) * (step >= 60)
        return capture(
            step, token_id=5 * np.ones((4, 100)), logp_new=-entropy - more, entropy=entropy
        )

    steps = np.arange(1, 101)
    signals = {} if kl is None else {"kl_ref": np.where(steps < 35, 0.02, kl)}
    run = make_run(captures=[made(s) for s in range(10, 101, 10)], signals=signals)
    found = measure(TOOL, run)
    size = (2 * at_forks + 3 * at_others) / 5
    assert found["signed_largest"] == pytest.approx(size, abs=1e-6)
    assert found["fork_surprise"] == pytest.approx(at_forks, abs=1e-6)
    assert found["fork_share"] == pytest.approx(at_forks / size, abs=1e-3)
    assert found["kl_before"] == kl
    assert (found["follows_speed"], found["gradual"]) == (follows, follows)
    # Older weights hardly show while the policy moves slowly: they may be there since KL was small.
    assert (found["quiet_step"], found["first_bad_step"]) == (30 if follows else 50, 60)


def test_tokens_after_the_stop_are_not_counted(
    pools: Pools, measure: Measure, changed: SimpleNamespace
) -> None:
    """What a framework writes into the padding changes nothing."""
    run = pools(2)

    def litter(c: Capture) -> Capture:
        mask = c.mask("completion_mask")
        assert mask is not None
        junk = {
            name: np.where(mask, c.arrays[name], value)
            for name, value in (("logp_new", -50.0), ("entropy", 3.0), ("logp_ref", -9.0))
        }
        return replace(c, arrays={**c.arrays, **junk})

    assert measure(TOOL, changed.recapture(run, litter)) == measure(TOOL, run)


def test_rows_with_and_without_padding_do_not_surprise_either(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    made = [sample(s, seed=s, rows=256) for s in range(1, 11)]
    found = measure(TOOL, make_run(captures=made, vocabulary=words))
    assert abs(found["surprise_padded"]) < 0.05
    assert abs(found["surprise_unpadded"]) < 0.05


def test_log_probs_that_are_wrong_in_padded_rows(
    pools: Pools, measure: Measure, changed: SimpleNamespace
) -> None:
    """Positions that start too late where the prompt is padded: those rows are scored wrongly."""

    def wrong(c: Capture) -> Capture:
        prompt = c.mask("prompt_mask")
        assert prompt is not None
        padded = np.asarray(~prompt.all(axis=1))
        logp = np.asarray(c.arrays["logp_new"]) - 1.0 * padded[:, None]
        return replace(c, arrays={**c.arrays, "logp_new": logp})

    found = measure(TOOL, changed.recapture(pools(3), wrong))
    assert found["surprise_padded"] > 0.9
    assert found["surprise_padded"] - found["surprise_unpadded"] == pytest.approx(1, abs=0.15)
    assert found["padding_gap"] > 3
    assert found["padding_correlation"] > 0.3


def test_without_data(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, missing: Callable[..., str]
) -> None:
    assert "log-probs and entropies" in missing(TOOL, make_run())
    few = make_run(captures=[sample(1, rows=8)], vocabulary=words)
    assert "at least 1500" in missing(TOOL, few)
    made = sample(1)
    bare = replace(made, arrays={k: v for k, v in made.arrays.items() if k != "entropy"})
    assert "entropies" in missing(TOOL, make_run(captures=[bare], vocabulary=words))


@settings(max_examples=6, derandomize=True)
@given(more=st.integers(0, 20), by=st.integers(0, 1000), seed=st.integers(0, 20))
def test_padding_order_of_rows_and_step_numbers_do_not_matter(
    pools: Pools, measure: Measure, changed: SimpleNamespace, more: int, by: int, seed: int
) -> None:
    run = pools(seed, temperature=1.6)
    before = measure(TOOL, run)
    rng = np.random.default_rng(seed)

    def change(c: Capture) -> Capture:
        order = rng.permutation(len(c.arrays["token_id"]))
        wide = {
            k: np.pad(v, ((0, 0), (0, more))) if v.ndim == 2 and not k.startswith("prompt") else v
            for k, v in c.arrays.items()
        }
        return replace(c, arrays={k: v[order] for k, v in wide.items()})

    after = measure(TOOL, changed.shift_steps(changed.recapture(run, change), by))
    assert (before["quiet_step"], before["first_bad_step"]) == (25, 30)
    assert (after["quiet_step"], after["first_bad_step"]) == (25 + by, 30 + by)
    for name in ("n_tokens", "surprise_all", "surprise_late", "z_late", "growth", "k3_late"):
        assert after[name] == pytest.approx(before[name], abs=1e-4)
