"""Learning rate against its schedule, and jumps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Run

TOOL = "check_learning_rate"
ONSET = 61

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Array = npt.NDArray[np.float64]


def rates(kind: str, steps: int = 120, peak: float = 1e-6, warm: int = 0) -> Array:
    """The rate logged at each step: that of the scheduler after s - 1 of its own steps."""
    found = []
    for done in range(steps):
        if done < warm:
            factor = done / warm
        elif kind.startswith("constant"):
            factor = 1.0
        elif kind == "linear":
            factor = (steps - done) / (steps - warm)
        else:
            factor = 0.5 * (1 + math.cos(math.pi * (done - warm) / (steps - warm)))
        found.append(peak * factor)
    return np.array(found)


def run_of(make_run: MakeRun, rate: Array, kind: str = "constant", **fields: Any) -> Run:
    config = {
        "learning_rate": fields.pop("peak", 1e-6),
        "lr_scheduler_type": kind,
        "max_steps": fields.pop("max_steps", len(rate)),
        "warmup_steps": fields.pop("warm", 0),
        **fields.pop("config", {}),
    }
    return make_run(signals={"learning_rate": rate}, config=config, **fields)


def test_hand_computed_linear_schedule(make_run: MakeRun, measure: Measure) -> None:
    # Peak 8, warm-up of 2 of 10 steps: 0, 4, then 8 x 8/8, 8 x 7/8, ..., 8 x 1/8.
    rate = np.array([0.0, 4, 8, 7, 6, 5, 4, 3, 2, 1])
    found = measure(TOOL, run_of(make_run, rate, "linear", peak=8.0, warm=2))
    assert (found["n_steps"], found["configured"]) == (10, 8)
    assert found["expected_known"]
    assert found["largest_factor"] == 1


@pytest.mark.parametrize("kind", ["constant", "linear"])
@pytest.mark.parametrize("peak_after", [1e-6, 2e-5])
def test_settings_of_a_resumed_run_are_no_schedule_of_the_steps_before(
    make_run: MakeRun,
    measure: Measure,
    evidence: Callable[..., Evidence],
    kind: str,
    peak_after: float,
) -> None:
    # The rate jumps 20-fold at step 61; the settings hold the rate before it, or the one after.
    rate = rates(kind, warm=4)
    rate[ONSET - 1 :] *= 20
    run = run_of(make_run, rate, kind, warm=4, peak=peak_after)
    found = measure(TOOL, run)
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["settings_fit_after"] == (peak_after == 2e-5)
    # Either way the schedule that is shown is the one that the run had until then.
    rows = {int(str(r[0])): r[1:] for r in evidence(TOOL, run).tables[0].rows}
    assert rows[30][1] == pytest.approx(rows[30][0])
    assert rows[90][1] == pytest.approx(float(str(rows[90][0])) / 20)


def test_a_jump_that_no_side_of_the_settings_explains(make_run: MakeRun, measure: Measure) -> None:
    rate = rates("constant", peak=3e-6)
    rate[ONSET - 1 :] *= 20
    assert measure(TOOL, run_of(make_run, rate))["settings_fit_after"] is False
    assert measure(TOOL, run_of(make_run, rates("constant")))["settings_fit_after"] is None


@pytest.mark.parametrize(
    ("kind", "warm"),
    [
        ("constant", 0),
        ("constant_with_warmup", 12),
        ("linear", 0),
        ("linear", 12),
        ("cosine", 0),
        ("cosine", 12),
    ],
)
def test_a_rate_on_its_schedule(make_run: MakeRun, measure: Measure, kind: str, warm: int) -> None:
    found = measure(TOOL, run_of(make_run, rates(kind, warm=warm), kind, warm=warm))
    assert found["expected_known"]
    assert found["largest_factor"] == 1
    assert found["share_off"] == 0
    assert found["first_bad_step"] is None
    assert not found["from_start"]


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("linear", 60),
        ("cosine", 30),
        ("constant", 20),
    ],
)
def test_a_short_run_on_its_schedule_has_no_jump(
    make_run: MakeRun, measure: Measure, kind: str, steps: int
) -> None:
    found = measure(TOOL, run_of(make_run, rates(kind, steps), kind))
    assert found["first_bad_step"] is None
    assert found["jump_factor"] <= 1.5


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_jump_is_dated(make_run: MakeRun, measure: Measure, kind: str, factor: float) -> None:
    rate = rates(kind)
    rate[ONSET - 1 :] *= factor
    found = measure(TOOL, run_of(make_run, rate, kind))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["jump_factor"] == pytest.approx(10, rel=0.1)
    assert found["jumps_up"] is (factor > 1)
    assert found["rate_before"] == rate[ONSET - 2]
    assert found["rate_after"] == rate[ONSET - 1]
    assert found["share_off"] == 0.5
    assert not found["at_resume"]


@pytest.mark.parametrize("factor", [20.0, 100.0, 1e4])
def test_a_huge_jump_is_a_jump_whether_the_schedule_is_known_or_not(
    make_run: MakeRun, measure: Measure, factor: float
) -> None:
    rate = rates("constant")
    rate[ONSET - 1 :] *= factor
    for run in (run_of(make_run, rate), make_run(signals={"learning_rate": rate})):
        found = measure(TOOL, run)
        assert found["first_bad_step"] == ONSET
        assert found["jump_factor"] == pytest.approx(factor)


def test_a_rate_that_was_never_the_configured_one(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, run_of(make_run, rates("linear", 400, peak=1e-5), "linear"))
    assert found["from_start"]
    assert found["largest_factor"] == pytest.approx(10)
    assert found["share_off"] > 0.95
    assert found["jump_factor"] < 1.5


def test_a_jump_is_not_dated_at_the_end_of_the_decay(make_run: MakeRun, measure: Measure) -> None:
    rate = rates("linear")
    rate[20:] *= 2
    assert measure(TOOL, run_of(make_run, rate, "linear"))["first_bad_step"] == 21


def test_a_decay_that_did_not_happen_leaves_the_schedule_slowly(
    make_run: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, run_of(make_run, rates("constant"), "linear"))
    # 5 % off where the schedule stands at 1/1.05 of the peak: after 120 x (1 - 1/1.05) = 5.7 steps.
    assert found["first_bad_step"] == 7
    assert found["jump_factor"] == 1


def test_a_resume_that_starts_the_schedule_anew(make_run: MakeRun, measure: Measure) -> None:
    rate = rates("linear")
    rate[ONSET - 1 :] = rate[:60]
    events = [("resume", ONSET, "resumed")]
    found = measure(TOOL, run_of(make_run, rate, "linear", events=events))
    assert found["first_bad_step"] == ONSET
    assert found["at_resume"]
    assert found["jumps_up"]
    far = measure(TOOL, run_of(make_run, rate, "linear", events=[("resume", 20, "resumed")]))
    assert not far["at_resume"]


def halved(make_run: MakeRun, peak: float, factor: float = 0.5, **fields: Any) -> Run:
    """A constant rate that is multiplied after a resume, whose own step still logs the old one."""
    rate = rates("constant")
    rate[ONSET:] *= factor
    events = fields.pop("events", [("resume", ONSET, "resumed")])
    return run_of(make_run, rate, peak=peak, events=events, **fields)


def test_a_rate_that_the_settings_lower_at_a_resume(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, halved(make_run, 0.5e-6))
    assert (found["first_bad_step"], found["jump_factor"], found["largest_factor"]) == (None, 1, 1)
    assert (found["settings_from_step"], found["n_steps"]) == (ONSET + 1, 59)


@pytest.mark.parametrize(
    "fields",
    [{"peak": 1e-6}, {"peak": 0.5e-6, "events": []}, {"peak": 0.5e-6, "factor": 0.3}],
    ids=["settings keep the old rate", "no resume", "to another rate than the settings"],
)
def test_a_rate_that_drops_against_its_settings(
    make_run: MakeRun, measure: Measure, fields: dict[str, Any]
) -> None:
    found = measure(TOOL, halved(make_run, **fields))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET, ONSET + 1)
    assert found["jump_factor"] == pytest.approx(1 / fields.get("factor", 0.5), abs=1e-3)
    assert found["settings_from_step"] is None


def test_settings_that_every_launch_states_alike_speak_for_all_steps(
    make_run: MakeRun, measure: Measure
) -> None:
    run = halved(make_run, 0.5e-6)
    told = replace(run, config=replace(run.config, changed=frozenset({"seed"})))
    found = measure(TOOL, told)
    assert (found["first_bad_step"], found["settings_from_step"]) == (ONSET + 1, None)


def test_a_rate_that_is_raised_at_a_resume_stays_in_sight(
    make_run: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, halved(make_run, 20e-6, factor=20))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET, ONSET + 1)
    assert (found["jump_factor"], found["settings_fit_after"]) == (20, True)
    unsaid = measure(TOOL, halved(make_run, 1e-6, factor=20))
    assert (unsaid["jump_factor"], unsaid["settings_fit_after"]) == (20, False)


def test_a_schedule_that_a_resume_replaces(make_run: MakeRun, measure: Measure) -> None:
    """From constant to a decay that is at two thirds: no jump, and no fault of either."""
    rate = np.concatenate([np.full(ONSET, 0.5e-6), rates("linear")[ONSET:]])
    events = [("resume", ONSET, "resumed")]
    found = measure(TOOL, run_of(make_run, rate, "linear", events=events))
    assert (found["first_bad_step"], found["settings_from_step"]) == (None, ONSET + 1)
    assert measure(TOOL, run_of(make_run, rate, "linear"))["first_bad_step"] == 1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("kind", "planned"), [("cosine", 60), ("linear", 60), ("cosine", 80)])
def test_a_schedule_that_is_planned_anew_at_a_resume_is_dated_there(
    make_run: MakeRun, measure: Measure, kind: str, planned: int, known: bool
) -> None:
    """The settings plan 120 steps, the launch before the resume fewer: it had a sound schedule."""
    first = np.append(rates(kind, planned, warm=5), 0.0)[:ONSET]
    rate = np.concatenate([first, rates(kind, warm=5)[ONSET:]])
    events = [("resume", ONSET, "resumed")]
    run = run_of(make_run, rate, kind if known else "polynomial", warm=5, events=events)
    found = measure(TOOL, run)
    assert found["expected_known"] is known
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET, ONSET + 1)
    assert found["jump_factor"] > 1.5
    assert found["settings_fit_after"] is (True if known else None)
    assert found["at_resume"]


def test_a_rate_that_drops_to_zero(make_run: MakeRun, measure: Measure) -> None:
    rate = rates("constant")
    rate[ONSET - 1 :] = 0
    found = measure(TOOL, run_of(make_run, rate))
    assert found["first_bad_step"] == ONSET
    assert found["jumps_up"] is False
    assert found["jump_factor"] > 1e5


@pytest.mark.parametrize("warm", [{"warmup_ratio": 0.1}, {"warmup_steps": 0.1}])
def test_a_warm_up_given_as_a_share(
    make_run: MakeRun, measure: Measure, warm: dict[str, object]
) -> None:
    run = run_of(make_run, rates("linear", warm=12), "linear", config={**warm})
    found = measure(TOOL, run)
    assert found["largest_factor"] == 1
    assert found["first_bad_step"] is None


def test_an_unknown_schedule_is_compared_with_itself(make_run: MakeRun, measure: Measure) -> None:
    rate = np.linspace(1.0, 0.7, 60) ** 2
    found = measure(TOOL, run_of(make_run, rate, "polynomial"))
    assert not found["expected_known"]
    assert (found["largest_factor"], found["share_off"]) == (1, 0)
    rate[40:] *= 3
    found = measure(TOOL, run_of(make_run, rate, "polynomial"))
    assert found["first_bad_step"] == 41
    assert measure(TOOL, make_run(signals={"learning_rate": rate}))["first_bad_step"] == 41


def test_a_jump_late_in_an_unknown_decay(make_run: MakeRun, measure: Measure) -> None:
    rate = rates("linear")
    rate[112:] *= 10
    assert measure(TOOL, make_run(signals={"learning_rate": rate}))["first_bad_step"] == 113


def test_a_warm_up_that_no_config_states_is_no_jump(make_run: MakeRun, measure: Measure) -> None:
    rate = rates("constant_with_warmup", warm=12)
    found = measure(TOOL, make_run(signals={"learning_rate": rate}))
    assert found["first_bad_step"] is None


@pytest.mark.parametrize("kind", ["constant_with_warmup", "linear", None])
@pytest.mark.parametrize("idle", [2, 10])
def test_a_warm_up_that_begins_late_is_no_jump(
    make_run: MakeRun, measure: Measure, kind: str | None, idle: int
) -> None:
    """A rate of 0 for some steps, then a linear warm-up whose second step doubles the rate."""
    step = np.arange(1, 121)
    done = np.maximum(step - 1 - idle, 0)
    rate = 1e-4 * np.minimum(1, done / 5)
    config: dict[str, object] = {"learning_rate": 1e-4, "warmup_steps": 5, "max_steps": 120}
    if kind == "linear":
        rate = np.where(done < 5, rate, 1e-4 * (120 - done) / 115)
    if kind is None:
        config = {}
    else:
        config["lr_scheduler_type"] = kind
    found = measure(TOOL, make_run(signals={"learning_rate": rate}, config=config))
    assert found["jump_factor"] < 1.5
    assert found["late_start_steps"] == idle
    assert found["first_bad_step"] is None
    # The same, and a jump after it.
    rate[80:] *= 4
    found = measure(TOOL, make_run(signals={"learning_rate": rate}, config=config))
    assert found["first_bad_step"] == 81
    assert found["jump_factor"] > 3


def test_a_warm_up_between_logged_steps_is_no_late_start(
    make_run: MakeRun, make_signal: Callable[..., Any], measure: Measure
) -> None:
    steps = np.array([1, *range(10, 161, 10)])
    rate = 1e-4 * np.minimum(1, (steps - 1) / 5)
    config = {"learning_rate": 1e-4, "warmup_steps": 5, "lr_scheduler_type": "constant_with_warmup"}
    logged = make_signal("learning_rate", rate, steps=steps)
    found = measure(TOOL, make_run(signals={"learning_rate": logged}, config=config))
    assert (found["late_start_steps"], found["first_bad_step"]) == (0, None)


def test_steps_that_are_counted_from_an_earlier_run(make_run: MakeRun, measure: Measure) -> None:
    rate = 1e-4 * np.minimum(1, np.arange(120) / 5)
    config = {"learning_rate": 1e-4, "warmup_steps": 5, "lr_scheduler_type": "constant_with_warmup"}
    run = make_run(signals={"learning_rate": rate}, config=config, first_step=1001)
    found = measure(TOOL, run)
    assert (found["late_start_steps"], found["first_bad_step"]) == (0, None)
    assert found["jump_factor"] < 1.5


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "no logged learning rate" in missing(TOOL, make_run())
    assert "no logged" in missing(TOOL, make_run(signals={"learning_rate": [1.0, 1.0]}))


@settings(max_examples=15, derandomize=True)
@given(
    unit=st.floats(1e-8, 1e3),
    kind=st.sampled_from(["constant", "linear", "cosine"]),
    onset=st.integers(10, 100),
    factor=st.floats(2, 100),
)
def test_the_unit_of_the_rate_does_not_matter(
    make_run: MakeRun,
    measure: Measure,
    unit: float,
    kind: str,
    onset: int,
    factor: float,
) -> None:
    rate = rates(kind, 400, peak=1.0)
    rate[onset - 1 :] *= factor
    before = measure(TOOL, run_of(make_run, rate, kind, peak=1.0))
    after = measure(TOOL, run_of(make_run, unit * rate, kind, peak=unit))
    assert before["first_bad_step"] == onset
    assert (after["first_bad_step"], after["jumps_up"]) == (onset, before["jumps_up"])
    for name in ("jump_factor", "largest_factor", "share_off"):
        assert after[name] == pytest.approx(before[name], rel=1e-3)
