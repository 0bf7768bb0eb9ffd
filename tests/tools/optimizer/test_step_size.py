"""Steps that are too bold: signals that run away together, reuse, and a jump after a resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Event, Run

TOOL = "check_step_size"
ONSET = 31

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Values = dict[str, npt.NDArray[np.float64]]
Steps = npt.NDArray[np.float64]


def test_hand_computed_growth(make_run: MakeRun, measure: Measure) -> None:
    # Norm 1 for ten steps, then 4: medians of five reach 4, over the first ten's median 4-fold.
    # KL 0.1 with one spike of 9: the medians of five stay at 0.1. Entropy 1 falls to 0.5: ln 2.
    # Reward 0.8 falls to 0.2; lowest possible start 0: (0.8 - 0.2)/0.8 = 0.75 is lost.
    kl = [0.1] * 20
    kl[7] = 9.0
    signals = {
        "grad_norm_preclip": [1.0] * 10 + [4.0] * 10,
        "kl_ref": kl,
        "entropy": [1.0] * 10 + [0.5] * 10,
        "reward_mean": [0.8] * 10 + [0.2] * 10,
        "learning_rate": [1e-6] * 20,
        "clip_frac_total": [0.0] * 13 + [0.1] * 7,
    }
    found = measure(TOOL, make_run(signals=signals))
    assert (found["n_steps"], found["rate"]) == (20, 1e-6)
    assert found["norm_growth"] == 4
    assert found["kl_peak"] == 0.1
    assert found["entropy_change"] == pytest.approx(np.log(2), abs=1e-6)
    assert found["reward_lost"] == pytest.approx(0.75)
    assert found["clip_late"] == pytest.approx(0.1)
    assert not found["runaway"], "KL of 0.1 runs nowhere"
    assert found["updates_per_batch"] is found["resume_step"] is None


def runaway(values: Values, steps: Steps) -> None:
    after = steps >= ONSET
    values["kl_ref"][after] = 1.5
    values["grad_norm_preclip"][after] *= 10
    values["reward_mean"][after] = 0.05


def test_all_run_away_together(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, log=runaway))
    assert found["runaway"]
    assert found["kl_peak"] == 1.5
    assert found["norm_growth"] == pytest.approx(10, rel=0.2)
    assert found["reward_lost"] > 0.8
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)


@pytest.mark.parametrize("kept", ["kl_ref", "reward_mean"])
def test_levels_alone_are_no_fault(simulate: MakeRun, measure: Measure, kept: str) -> None:
    """KL high while the reward holds, and a reward lost while KL stays: neither is a runaway."""

    def log(values: Values, steps: Steps) -> None:
        before = values[kept].copy()
        runaway(values, steps)
        values[kept] = before

    found = measure(TOOL, simulate(1, log=log))
    assert not found["runaway"]
    assert found["first_bad_step"] is None


def test_one_spike_of_everything_is_no_runaway(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        at = steps == ONSET
        values["kl_ref"][at], values["grad_norm_preclip"][at] = 50, 50
        values["reward_mean"][at] = 0

    found = measure(TOOL, simulate(1, log=log))
    assert not found["runaway"]
    assert found["kl_peak"] < 0.05
    assert found["norm_growth"] < 1.5


@pytest.mark.parametrize(
    ("passes", "clip", "reward", "alarm"),
    [
        (4, 0.4, 0.3, True),
        (4, 0.4, 1.0, False),
        (4, 0.1, 0.3, False),
        (2, 0.4, 0.3, False),
        (1, 0.4, 0.3, False),
    ],
)
def test_a_batch_used_too_often(
    simulate: MakeRun, measure: Measure, passes: int, clip: float, reward: float, alarm: bool
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["clip_frac_total"][steps > 40] = clip
        values["reward_mean"][steps > 40] *= reward

    found = measure(TOOL, simulate(1, log=log, config={"num_iterations": passes}))
    assert found["updates_per_batch"] == passes
    assert found["clip_late"] == pytest.approx(clip, rel=0.01)
    assert found["reuse_alarm"] is alarm


def test_a_batch_is_one_sample_of_the_reward_however_often_it_is_trained(
    make_run: MakeRun, measure: Measure
) -> None:
    def run(batches: list[float]) -> Run:
        values = np.repeat(batches, 8)
        signals = {"reward_mean": values, "grad_norm_preclip": np.ones(len(values))}
        return make_run(signals=signals, config={"updates_per_batch": 8})

    scattered = [0.9, 0.3, 0.7, 0.5, 0.8] * 6
    assert measure(TOOL, run(scattered))["reward_lost"] == pytest.approx(0, abs=0.1)
    # The same value batch after batch counts as often as there are batches.
    assert measure(TOOL, run([0.8] * 20 + [0.0] * 10))["reward_lost"] == 1


def resumed(values: Values, steps: Steps) -> None:
    """KL wanders by 0.001 a step before the resume, and by 0.02 after it."""
    rng = np.random.default_rng(0)
    size = np.where(steps >= ONSET, 0.02, 0.001)
    values["kl_ref"] = 0.05 + size * np.where(np.arange(len(steps)) % 2, 1, -1)
    values["kl_ref"] += 1e-4 * rng.normal(size=len(steps))


def test_a_jump_right_after_a_resume(simulate: MakeRun, measure: Measure) -> None:
    run = simulate(1, log=resumed)
    assert measure(TOOL, run)["resume_step"] is None
    assert not measure(TOOL, run)["resume_jump"]
    found = measure(TOOL, with_resume(run, ONSET))
    assert found["resume_step"] == found["first_bad_step"] == ONSET
    assert found["last_good_step"] == ONSET - 1
    assert found["resume_kl_factor"] > 10
    assert found["resume_norm_factor"] == pytest.approx(1, rel=0.2)
    assert found["resume_jump"]
    assert not found["from_start"]


def test_a_resume_that_changes_nothing(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, with_resume(simulate(1), ONSET))
    assert found["resume_step"] == ONSET
    assert found["resume_kl_factor"] == pytest.approx(1, rel=0.8)
    assert not found["resume_jump"]
    assert found["first_bad_step"] is None


def growing(values: Values, steps: Steps) -> None:
    """KL grows ever faster, as it does early on, with noise of a tenth of its level."""
    noise = np.random.default_rng(3).normal(size=len(steps))
    values["kl_ref"] = 5e-5 * steps**2 * (1 + 0.15 * noise * (steps >= ONSET))


def test_noise_of_a_kl_that_is_higher_by_then_is_no_jump(
    simulate: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, with_resume(simulate(1, log=growing), ONSET))
    assert found["resume_kl_factor"] < 3
    assert not found["resume_jump"]


def with_resume(run: Run, step: int) -> Run:
    return replace(run, events=(Event("resume", step, "resumed", "train.log"),))


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "gradient norms" in missing(TOOL, make_run())
    few = {"grad_norm_preclip": [1.0] * 9, "kl_ref": [0.1] * 9}
    assert "fewer than ten" in missing(TOOL, make_run(signals=few))


@settings(max_examples=10, derandomize=True)
@given(unit=st.floats(0.01, 100), by=st.integers(1, 1000), seed=st.integers(0, 20))
def test_the_unit_of_the_norm_and_step_numbers_do_not_matter(
    make_run: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    unit: float,
    by: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    norm = np.exp(rng.normal(0, 0.1, 60)) * np.where(np.arange(60) < 30, 1, 10)
    signals = {
        "kl_ref": np.where(np.arange(60) < 30, 0.02, 1.0),
        "reward_mean": np.where(np.arange(60) < 30, 0.8, 0.1),
    }
    before = measure(TOOL, make_run(signals={**signals, "grad_norm_preclip": norm}))
    scaled = make_run(signals={**signals, "grad_norm_preclip": unit * norm})
    after = measure(TOOL, changed.shift_steps(scaled, by))
    assert before["runaway"]
    assert after["norm_growth"] == pytest.approx(before["norm_growth"], rel=1e-3)
    assert after["first_bad_step"] == before["first_bad_step"] + by
    for name in ("runaway", "kl_peak", "reward_lost", "resume_jump", "reuse_alarm"):
        assert after[name] == before[name]


@pytest.mark.parametrize(
    ("beta", "unheld"), [(0.0, True), (0.02, False), (None, False)], ids=["0", "0.02", "unstated"]
)
def test_a_policy_that_nothing_holds(
    make_run: MakeRun, measure: Measure, beta: float | None, unheld: bool
) -> None:
    """Without a KL weight no KL is logged: norm, entropy and reward have to tell."""
    signals = {
        "grad_norm_preclip": [1.0] * 15 + [5.0] * 15,
        "entropy": [1.0] * 15 + [0.3] * 15,
        "reward_mean": [0.8] * 20 + [0.1] * 10,
        "learning_rate": [1e-3] * 30,
    }
    run = make_run(signals=signals, config={} if beta is None else {"beta": beta})
    found = measure(TOOL, run)
    assert found["unheld"] is unheld
    assert found["first_bad_step"] == (21 if unheld else None)
    # The same growth while reward holds is learning.
    held = make_run(signals={**signals, "reward_mean": [0.8] * 30}, config={"beta": 0.0})
    assert not measure(TOOL, held)["unheld"]
