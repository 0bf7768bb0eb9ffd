"""Gradient norms: level, clip hits, and a whole factor at one step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Run

TOOL = "check_norms"
ONSET = 31

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Values = dict[str, npt.NDArray[np.float64]]
Steps = npt.NDArray[np.float64]
Change = Callable[[Values, Steps], None]


def times(factor: float, onset: int = ONSET) -> Change:
    def log(values: Values, steps: Steps) -> None:
        values["grad_norm_preclip"][steps >= onset] *= factor

    return log


def test_hand_computed_levels(make_run: MakeRun, measure: Measure) -> None:
    # Twelve norms, four a third: medians 1, 1 and 3. Clip value 2: five of twelve are above it.
    # Over all twelve the median is 1; the largest, 6, is six times that.
    norm = [1.0, 1, 1, 1, 1, 1, 1, 6, 3, 3, 3, 3]
    signals = {"grad_norm_preclip": norm, "kl_ref": [0.0] + [0.01] * 11}
    found = measure(TOOL, make_run(signals=signals, config={"max_grad_norm": 2.0, "beta": 0.1}))
    assert (found["n_steps"], found["clip_value"]) == (12, 2)
    assert found["share_above_clip"] == pytest.approx(5 / 12, abs=1e-6)
    assert found["norm_over_clip_median"] == 0.5
    assert (found["late_over_early"], found["largest_over_median"]) == (3, 6)
    assert found["shift_factor"] is None, "twelve steps leave no room for two levels"
    assert found["kl_late"] == 0.01


def test_hand_computed_change_for_the_size_of_the_advantages(
    make_run: MakeRun, measure: Measure
) -> None:
    # Three in four groups have contrast, then one in four: sqrt(0.75) and sqrt(0.25). A norm of
    # 1 and 3 in turn for each stays at 2 per unit, until the last third has half of it.
    per_unit = np.tile([1.0, 3.0], 30)
    per_unit[40:] /= 2
    idle = np.repeat([0.25, 0.75], 30)
    signals = {
        "grad_norm_preclip": per_unit * np.sqrt(1 - idle),
        "frac_zero_variance_groups": idle,
    }
    found = measure(TOOL, make_run(signals=signals))
    assert found["per_contrast_late_over_early"] == 0.5
    # Variances 20/19 and 5/19 over 20 values: the standard error is 0.2565, of a fall by 1.
    assert found["per_contrast_z"] == pytest.approx(-1 / np.sqrt(25 / 19 / 20), abs=1e-3)
    del signals["frac_zero_variance_groups"]
    assert measure(TOOL, make_run(signals=signals))["per_contrast_z"] is None


@pytest.mark.parametrize(
    ("factor", "named"), [(4.0, 4), (8.0, 8), (0.25, 0.25), (0.5, 0.5), (2.6, None)]
)
def test_a_factor_is_dated_and_named(
    simulate: MakeRun, measure: Measure, factor: float, named: float | None
) -> None:
    found = measure(TOOL, simulate(1, log=times(factor)))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["shift_factor"] == pytest.approx(factor, rel=0.06)
    assert found["shift_size"] == pytest.approx(max(factor, 1 / factor), rel=0.06)
    assert found["factor_named"] == named
    assert found["neighbours_still"]


def test_a_factor_under_noise_is_dated_by_a_bracket(make_run: MakeRun, measure: Measure) -> None:
    """Norms of a real run scatter by a third from step to step: no single step is certain."""
    held = 0
    for seed in range(40):
        norm = np.exp(np.random.default_rng(seed).normal(0, 0.35, 120))
        norm[59:] *= 2  # from step 60 on
        found = measure(TOOL, make_run(signals={"grad_norm_preclip": norm}))
        held += found["last_good_step"] < 60 <= found["first_bad_step"]
        assert found["sampled"] or found["first_bad_step"] - found["last_good_step"] == 1
    assert held >= 36


@pytest.mark.parametrize("name", ["entropy", "completion_length_mean", "reward_mean"])
def test_neighbours_that_move_across_the_same_step(
    simulate: MakeRun, measure: Measure, name: str
) -> None:
    def log(values: Values, steps: Steps) -> None:
        times(4)(values, steps)
        values[name][steps >= ONSET] *= 2

    assert not measure(TOOL, simulate(1, log=log))["neighbours_still"]


def test_a_kl_that_explodes_does_not_stand_still(simulate: MakeRun, measure: Measure) -> None:
    """A policy that runs away raises the norm too."""

    def log(values: Values, steps: Steps) -> None:
        times(4)(values, steps)
        values["kl_ref"][steps >= ONSET] *= 50

    assert not measure(TOOL, simulate(1, log=log))["neighbours_still"]


def test_a_kl_that_leaps_and_comes_back_does_not_stand_still(
    simulate: MakeRun, measure: Measure
) -> None:
    """The level hardly moves yet: the leaps show that the policy breaks loose."""

    def log(values: Values, steps: Steps) -> None:
        times(2)(values, steps)
        values["kl_ref"][(steps >= ONSET) & (steps % 5 == 0)] += 2.0

    assert not measure(TOOL, simulate(1, log=log))["neighbours_still"]


def spike(values: Values, steps: Steps) -> None:
    values["grad_norm_preclip"][steps == ONSET] *= 100


def drift(values: Values, steps: Steps) -> None:
    values["grad_norm_preclip"] *= np.exp(np.linspace(0, 0.3, len(steps)))


def wild(values: Values, steps: Steps) -> None:
    values["grad_norm_preclip"] *= np.exp(np.random.default_rng(2).normal(0, 1, len(steps)))


def swell(values: Values, steps: Steps) -> None:
    values["grad_norm_preclip"] *= np.exp(np.linspace(0, 1.4, len(steps)))


@pytest.mark.parametrize("change", [spike, drift, swell, wild])
def test_what_is_no_change_of_level(simulate: MakeRun, measure: Measure, change: Change) -> None:
    found = measure(TOOL, simulate(1, log=change))
    assert found["shift_factor"] is found["factor_named"] is found["neighbours_still"] is None
    assert found["first_bad_step"] is None


def test_steps_without_contrast_belong_to_no_level(simulate: MakeRun, measure: Measure) -> None:
    """Where every group is all right there is hardly a gradient, and that is no new level."""

    def flat(step: float) -> bool:
        return step >= ONSET and step % 2 == 0

    def edit(d: SimpleNamespace) -> None:
        if flat(d.step):
            for part in d.rewards.values():
                part[:] = 1

    def log(values: Values, steps: Steps) -> None:
        values["grad_norm_preclip"][[flat(s) for s in steps]] *= 0.001

    found = measure(TOOL, simulate(1, edit=edit, log=log))
    assert found["shift_factor"] is None
    assert found["first_bad_step"] is None


def test_norms_above_the_clip_value_are_only_counted(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, config={"max_grad_norm": 0.1}))
    assert found["share_above_clip"] == 1
    assert found["norm_over_clip_median"] == pytest.approx(5, rel=0.1)
    assert found["first_bad_step"] is None


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "gradient norms" in missing(TOOL, make_run())
    assert "ten" in missing(TOOL, make_run(signals={"grad_norm_preclip": [1.0] * 9}))


@settings(max_examples=10, derandomize=True)
@given(unit=st.floats(0.01, 100), by=st.integers(1, 1000), seed=st.integers(0, 50))
def test_a_unit_of_the_norm_changes_no_ratio_and_dates_move(
    make_run: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    unit: float,
    by: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    norm = np.exp(rng.normal(0, 0.1, 60)) * np.where(np.arange(60) < 30, 1, 4)
    before = measure(TOOL, make_run(signals={"grad_norm_preclip": norm}))
    run = make_run(signals={"grad_norm_preclip": unit * norm})
    after = measure(TOOL, changed.shift_steps(run, by))
    assert (after["last_good_step"], after["first_bad_step"]) == (ONSET - 1 + by, ONSET + by)
    for name in ("late_over_early", "largest_over_median", "shift_factor", "factor_named"):
        assert after[name] == pytest.approx(before[name], rel=1e-3)


def sparse(factor: float, *, seed: int = 0, spread: float = 0.2, steps: int = 17) -> list[float]:
    """Norms of every tenth step, of which the last 9 are changed."""
    noise = np.exp(spread * np.random.default_rng(seed).standard_normal(steps))
    noise[-9:] *= factor
    return [float(norm) for norm in noise]


def test_a_change_in_too_few_steps_to_name_it_is_told(make_run: MakeRun, measure: Measure) -> None:
    contrast = {"frac_zero_variance_groups": [0.1] * 17}
    found = measure(TOOL, make_run(signals={"grad_norm_preclip": sparse(2.0)} | contrast))
    assert found["shift_factor"] is found["first_bad_step"] is None
    assert found["change_size"] == pytest.approx(2, rel=0.25)
    assert found["change_z"] > 4.5
    # Without the size of the advantages a change of the norm says nothing.
    unknown = measure(TOOL, make_run(signals={"grad_norm_preclip": sparse(2.0)}))
    assert unknown["change_size"] is unknown["change_z"] is None


def test_noise_and_a_drift_of_few_steps_are_no_change(make_run: MakeRun, measure: Measure) -> None:
    contrast = {"frac_zero_variance_groups": [0.1] * 17}
    drift = np.linspace(1, 2.5, 17)
    series = [sparse(1.0, seed=seed, spread=0.3) for seed in range(30)]
    series += [(drift * sparse(1.0, seed=seed, spread=0.1)).tolist() for seed in range(10)]
    found = [
        measure(TOOL, make_run(signals={"grad_norm_preclip": norm} | contrast)) for norm in series
    ]
    # 3 of 600 such series are taken for one.
    assert sum(f["change_size"] > 1.5 and f["change_z"] > 4.5 for f in found) <= 1


@pytest.mark.parametrize("share", ["logged", "hidden"])
def test_groups_without_contrast_are_no_factor_where_no_rollouts_tell(
    make_run: MakeRun, measure: Measure, share: str
) -> None:
    """Norms fall with the number of groups that differ: known by the logged share, or unknown."""
    rng = np.random.default_rng(0)
    equal = np.where(np.arange(60) < 30, 0.0, 15 / 16)
    norm = np.exp(rng.normal(0, 0.1, 60)) * np.sqrt(1 - equal)
    logged = equal if share == "logged" else np.zeros(60)
    signals = {"grad_norm_preclip": norm, "frac_zero_variance_groups": logged}
    found = measure(TOOL, make_run(signals=signals))
    if share == "logged":
        assert found["contrast_known"]
        assert found["shift_factor"] is None
    else:  # float32 spread of equal rewards hides them all
        assert not found["contrast_known"]
        assert found["factor_named"] == 0.25


def test_a_learning_rate_that_moved_just_before_is_no_still_neighbour(
    simulate: MakeRun, measure: Measure
) -> None:
    def log(values: Values, steps: Steps) -> None:
        times(2.0)(values, steps)
        values["learning_rate"] = np.where(steps >= ONSET - 9, 5e-4, 1e-4)

    assert measure(TOOL, simulate(1, log=times(2.0)))["neighbours_still"]
    assert measure(TOOL, simulate(1, log=log))["neighbours_still"] is False
