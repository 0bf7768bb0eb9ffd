"""The first bad step, from per-step signals against their own bands."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Run
from firstbad.tools.window.first_bad import WATCHED

TOOL = "find_first_bad"
ONSET, STEPS = 61, 120

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Array = npt.NDArray[np.float64]

LEVELS = {
    "reward_mean": (0.6, 0.04),
    "reward_std": (0.3, 0.02),
    "kl_ref": (0.02, 0.003),
    "kl_old": (0.001, 0.0002),
    "entropy": (1.2, 0.04),
    "grad_norm_preclip": (0.5, 0.06),
    "completion_length_mean": (120.0, 5.0),
    "truncation_rate": (0.02, 0.01),
    "clip_frac_total": (0.01, 0.004),
    "ratio_max": (1.1, 0.03),
    "logprob_diff_mean": (0.01, 0.001),
    "ess_ratio": (0.97, 0.005),
    "step_time": (2.0, 0.1),
}
"""Level and spread of a single step in a quiet run."""


def quiet(seed: int = 0, steps: int = STEPS) -> dict[str, Array]:
    """Signals that wander about their level."""
    rng = np.random.default_rng(seed)
    return {n: level + s * rng.normal(size=steps) for n, (level, s) in LEVELS.items()}


def with_change(seed: int = 0, /, **factors: float) -> dict[str, Array]:
    """Quiet signals, some of which change their level at the onset."""
    values = quiet(seed)
    for name, factor in factors.items():
        values[name][ONSET - 1 :] *= factor
    return values


def test_hand_computed_band(make_run: MakeRun, evidence: Callable[..., Evidence]) -> None:
    # Reward 0.5 and 0.6 in turn for 20 steps: no trend to speak of, median 0.55, deviations 0.05
    # from the line through them: 1.4826 x 0.05 = 0.074, three of them 0.222, more than a tenth of
    # the level. At step 21 it is 0.2: 0.35 away, and stays there.
    reward = [0.5, 0.6] * 10 + [0.2] * 10
    found = evidence(TOOL, make_run(signals={"reward_mean": reward}))
    assert found.metrics is not None
    assert found.metrics["is_onset"]
    assert not found.metrics["is_steady"]
    assert (found.metrics["last_good_step"], found.metrics["first_bad_step"]) == (20, 21)
    assert (found.metrics["n_signals"], found.metrics["n_moved"]) == (1, 1)
    assert found.summary == (
        "`reward_mean` left its band first, at step 21: level 0.55 before, 0.2 after, "
        "1.6 times the move that its band allows, at once"
    )
    assert found.metrics["reward_fell"] is True
    assert found.metrics["kl_rose"] is None, "not logged"
    # Medians of ten run from 0.55 down to 0.2: nothing is left.
    assert found.metrics["outcome_end_over_best"] == 0
    assert found.signal == "reward_mean"
    (row,) = found.tables[0].rows
    assert row[:4] == ("reward_mean", 20, 21, "abrupt")
    assert row[4] == pytest.approx(0.55)
    assert row[5] == pytest.approx(0.2)
    assert row[6] == pytest.approx(0.35 / 0.222, abs=0.08)


@pytest.mark.parametrize(
    ("name", "factor", "says"),
    [
        ("reward_mean", 0.3, "reward_fell"),
        ("kl_ref", 20, "kl_rose"),
        ("kl_old", 60, "kl_rose"),
        ("entropy", 0.4, "entropy_moved"),
        ("entropy", 2.0, "entropy_moved"),
        ("grad_norm_preclip", 8, "norm_moved"),
        ("grad_norm_preclip", 0.1, "norm_moved"),
        ("completion_length_mean", 2, "length_moved"),
        ("completion_length_mean", 0.4, "length_moved"),
        ("truncation_rate", 30, "truncation_rose"),
        ("clip_frac_total", 20, None),
        ("ratio_max", 2, None),
        ("logprob_diff_mean", 5, None),
        ("ess_ratio", 0.8, "ess_fell"),
        ("reward_std", 0.1, None),
    ],
)
def test_a_jump_of_any_watched_signal_is_dated_exactly(
    make_run: MakeRun, measure: Measure, name: str, factor: float, says: str | None
) -> None:
    found = measure(TOOL, make_run(signals=with_change(0, **{name: factor})))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["n_moved"] == 1
    told = {k for k, v in found.items() if v is True}
    fell = {"outcome_fell"} if says in ("reward_fell", "part_fell") else set()
    assert told == {"is_onset"} | ({says} if says else set()) | fell


def test_a_reward_part_that_falls(simulate: MakeRun, measure: Measure) -> None:
    def dead(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            d.rewards["correct"][:] = 0

    found = measure(TOOL, simulate(1, steps=STEPS, edit=dead))
    assert found["part_fell"]
    assert found["reward_fell"]
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)


def test_of_several_signals_the_first_leads(
    make_run: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    values = with_change(0, reward_mean=0.2)
    values["kl_ref"][ONSET - 6 :] *= 30
    found = evidence(TOOL, make_run(signals=values))
    assert found.metrics is not None
    assert found.metrics["first_bad_step"] == ONSET - 5
    assert found.signal == "kl_ref"
    assert found.metrics["n_moved"] == 2
    assert [row[0] for row in found.tables[0].rows] == ["kl_ref", "reward_mean"]


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_little_less_or_more_effective_samples_are_no_change(
    make_run: MakeRun, measure: Measure, factor: float
) -> None:
    found = measure(TOOL, make_run(signals=with_change(0, ess_ratio=factor)))
    assert (found["is_steady"], found["ess_fell"]) == (True, False)


@pytest.mark.parametrize("seed", range(3))
def test_a_jump_of_step_time_is_shown_and_sets_no_window(
    make_run: MakeRun, evidence: Callable[..., Evidence], seed: int
) -> None:
    found = evidence(TOOL, make_run(signals=with_change(seed, step_time=5)))
    assert found.metrics is not None
    assert found.metrics["timing_rose"]
    assert found.metrics["is_steady"]
    assert found.metrics["first_bad_step"] is None
    assert found.metrics["n_moved"] == 0
    assert found.tables[0].rows[0][:3] == ("step_time", ONSET - 1, ONSET)


def spikes(values: dict[str, Array]) -> None:
    for at, name in enumerate(values):
        values[name][40 + 5 * at] *= 0.05 if name == "reward_mean" else 30


def slow_entropy(values: dict[str, Array]) -> None:
    """The policy gets surer of itself over the whole run, as in every healthy one."""
    values["entropy"] *= np.linspace(1, 0.7, STEPS)


def learning(values: dict[str, Array]) -> None:
    """Reward rises, then stays; length and KL rise slowly with it."""
    values["reward_mean"] *= np.minimum(1, 0.3 + np.arange(STEPS) / 100)
    values["completion_length_mean"] *= np.linspace(1, 1.6, STEPS)


def good_news(values: dict[str, Array]) -> None:
    """Moves in the direction that is good."""
    values["reward_mean"][ONSET - 1 :] *= 1.5
    values["kl_ref"][ONSET - 1 :] *= 0.2
    values["truncation_rate"][ONSET - 1 :] = 0


def short_dip(values: dict[str, Array]) -> None:
    """Three bad steps in a row, then as before."""
    values["reward_mean"][ONSET - 1 : ONSET + 2] = 0


def nothing(values: dict[str, Array]) -> None:
    pass


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("change", [nothing, spikes, slow_entropy, learning, good_news, short_dip])
def test_what_sets_no_window(
    make_run: MakeRun,
    measure: Measure,
    change: Callable[[dict[str, Array]], None],
    seed: int,
) -> None:
    values = quiet(seed)
    change(values)
    found = measure(TOOL, make_run(signals=values))
    assert found["is_steady"]
    assert not found["is_onset"]
    assert found["n_moved"] == 0
    assert found["last_good_step"] is found["first_bad_step"] is None


def test_a_steady_fall_of_entropy_to_the_half_sets_no_window(
    make_run: MakeRun, measure: Measure
) -> None:
    for seed in range(2):
        values = quiet(seed)
        values["entropy"] *= np.linspace(1, 0.5, STEPS)
        assert measure(TOOL, make_run(signals=values))["is_steady"]


@pytest.mark.parametrize(("end", "steady"), [(0.06, True), (0.09, True), (0.3, False)])
def test_kl_that_grows_a_little_as_the_policy_learns_sets_no_window(
    make_run: MakeRun, measure: Measure, end: float, steady: bool
) -> None:
    steps = np.linspace(0, 1, 2 * STEPS)
    noise = quiet(0, 2 * STEPS)
    signals = {
        "kl_ref": 0.005 + end * steps + noise["kl_ref"] - 0.02,
        "reward_mean": 0.9 + 0.2 * steps + noise["reward_mean"] - 0.6,
    }
    assert measure(TOOL, make_run(signals=signals))["is_steady"] == steady


def test_quiet_runs_raise_few_false_alarms(make_run: MakeRun, measure: Measure) -> None:
    """Of 12 quiet runs with twelve signals of 120 steps none sets a window (0 of 300 did)."""
    for seed in range(12):
        assert not measure(TOOL, make_run(signals=quiet(seed)))["is_onset"]


def test_a_slow_decay_of_the_reward_is_found_and_told_from_a_jump(
    make_run: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    values = quiet(1)
    # Level until step 60, then down to a fifth by the end.
    values["reward_mean"] *= np.interp(np.arange(STEPS), [0, 60, 119], [1, 1, 0.2])
    found = evidence(TOOL, make_run(signals=values))
    assert found.metrics is not None
    assert found.metrics["is_onset"]
    assert found.metrics["reward_fell"]
    first = found.metrics["first_bad_step"]
    assert first is not None
    assert 61 <= first <= 95
    assert found.metrics["outcome_end_over_best"] == 0


def test_how_much_of_the_outcome_is_left_at_the_end(make_run: MakeRun, measure: Measure) -> None:
    # Medians of ten: 0.2 at first, 0.8 at best, 0.5 at the end: half of what was gained.
    reward = [0.2] * 20 + [0.8] * 20 + [0.5] * 20
    found = measure(TOOL, make_run(signals={"reward_mean": reward}))
    assert found["outcome_end_over_best"] == pytest.approx(0.5)
    flat = measure(TOOL, make_run(signals={"reward_mean": [0.5] * 60}))
    assert flat["outcome_end_over_best"] is None


def test_every_watched_signal_is_made_here(make_run: MakeRun, measure: Measure) -> None:
    assert set(LEVELS) == set(WATCHED), "a new watched signal needs a level here"
    found = measure(TOOL, make_run(signals=quiet()))
    assert found["n_signals"] == len(WATCHED)


def test_steps_may_be_logged_every_tenth_step(
    make_run: MakeRun, make_signal: Callable[..., Any], measure: Measure
) -> None:
    steps = np.arange(10, 1210, 10)
    signals = {
        name: make_signal(name, values, steps=steps)
        for name, values in with_change(0, reward_mean=0.2).items()
    }
    found = measure(TOOL, make_run(signals=signals))
    assert (found["last_good_step"], found["first_bad_step"]) == (600, 610)


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "at least 13 steps" in missing(TOOL, make_run())
    signals = {"reward_mean": [0.5] * 12, "learning_rate": [1.0] * 50}
    text = missing(TOOL, make_run(signals=signals))
    assert "reward_mean, learning_rate" in text, "what is there is named"


@settings(max_examples=6, derandomize=True)
@given(
    seed=st.integers(0, 50),
    by=st.integers(0, 5000),
    onset=st.integers(25, 100),
    names=st.permutations(list(LEVELS)),
)
def test_step_numbers_and_the_order_of_signals_do_not_matter(
    make_run: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    seed: int,
    by: int,
    onset: int,
    names: list[str],
) -> None:
    values = quiet(seed)
    values["reward_mean"][onset - 1 :] *= 0.1
    before = measure(TOOL, make_run(signals=values))
    assert before["first_bad_step"] == onset
    run = make_run(signals={name: values[name] for name in names})
    assert measure(TOOL, changed.shift_steps(run, by)) == changed.dates_moved(before, by)


def test_a_drift_is_told_from_the_best_level_of_the_run(
    make_run: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    """No single step stands out, so what was just before it is not what the move is from."""
    noise = np.sin(np.arange(120) * 12.9898) * 0.01
    kl = np.concatenate([np.full(20, 0.02), np.linspace(0.02, 0.6, 100)]) + noise
    found = evidence(TOOL, make_run(signals={"kl_ref": np.maximum(kl, 0.0)}))
    assert found.tables[0].rows[0][3] == "gradual"
    assert "from its best level, 0.0" in found.summary
    assert "to 0.5" in found.summary
    assert found.summary.endswith("gradually")
