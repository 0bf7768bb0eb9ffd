"""Settings that changed at a resume: the file that is left speaks for the last launch only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.completeness import whole_groups
from firstbad.tools.run import Event, Rollouts, Run, Signals
from firstbad.tools.segments import launch_steps

RESUME, LAST = 31, 60

MakeRun = Callable[..., Run]
MakeSignal = Callable[..., Any]
Measure = Callable[..., dict[str, Any]]
Missing = Callable[..., str]
Advantages = Callable[..., npt.NDArray[np.float64]]
Values = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Change:
    """How a run under the earlier settings differs from one under those on file."""

    tool: str
    setting: str
    earlier: dict[str, Any]
    later: dict[str, Any] = field(default_factory=dict)


def logs(name: str, factor: float = 1.0, plus: float = 0.0) -> dict[str, Any]:
    def log(values: Values, steps: npt.NDArray[np.float64]) -> None:
        values[name] = values[name] * factor + plus

    return {"log": log}


def undivided(draft: SimpleNamespace) -> None:
    means = [draft.total[draft.group == g].mean() for g in draft.group]
    draft.advantage = draft.total - np.array(means)


CAP_64 = {"config": {"loss_type": "dr_grpo", "max_completion_length": 64}}
CHANGES = [
    Change("recompute_means", "reward_weights", {"config": {"reward_weights": [1.0, 0.6]}}),
    Change("recompute_advantages", "scale_rewards", {"train": undivided}),
    Change("check_rows", "num_generations", {"groups": 8, "size": 4}),
    Change(
        "count_trained_tokens",
        "per_device_train_batch_size",
        {},
        {**logs("trained_tokens_mean", 0.5), "config": {"per_device_train_batch_size": 16}},
    ),
    Change(  # with a cap of 128 the constant denominator is twice as large
        "check_loss_identity", "max_completion_length", {**CAP_64, **logs("loss", 0.5)}, CAP_64
    ),
    Change("check_ratios", "num_iterations", logs("clip_frac_total", plus=0.1)),
]
BY_TOOL = {change.tool: change for change in CHANGES}
each_change = pytest.mark.parametrize("change", CHANGES, ids=[c.tool for c in CHANGES])


@pytest.fixture(name="launched")
def _launched(simulate: MakeRun) -> Callable[..., Run]:
    """One run of several parts, with the settings of the last launch; resumed at `resume`."""

    def join(change: Change, *parts: tuple[str, int], resume: int | None = RESUME) -> Run:
        runs, first = [], 1
        for kind, last in parts:
            fields = change.earlier if kind == "earlier" else change.later
            runs.append(simulate(first, first_step=first, steps=last - first + 1, **fields))
            first = last + 1
        batches = {b.step: b for run in runs for b in run.rollouts.batches()}
        signals = {
            name: replace(
                signal,
                steps=np.concatenate([run.signals.known[name].steps for run in runs]),
                values=np.concatenate([run.signals.known[name].values for run in runs]),
            )
            for name, signal in runs[0].signals.known.items()
        }
        return replace(
            runs[0],
            config=simulate(0, steps=1, **change.later).config,
            signals=Signals(signals),
            rollouts=Rollouts(list(batches), lambda steps: map(batches.__getitem__, steps)),
            events=() if resume is None else (Event("resume", resume, "resumed", "train.log"),),
        )

    return join


def changed(run: Run, *names: str) -> Run:
    """The run where every launch states its settings, and these differ."""
    return replace(run, config=replace(run.config, changed=frozenset(names)))


def test_each_step_knows_its_launch(make_run: MakeRun) -> None:
    run = make_run()
    for at in (31, 0, 12, 31):
        run.events = (*run.events, Event("resume", at, "resumed", "log"))
    steps = np.array([0, 1, 11, 12, 30, 31, 60])
    assert launch_steps(run, steps).tolist() == [1, 1, 1, 12, 12, 31, 31]


@each_change
def test_other_settings_before_a_resume_are_no_fault(
    launched: Callable[..., Run], measure: Measure, change: Change
) -> None:
    run = launched(change, ("earlier", RESUME - 1), ("later", LAST))
    for told in (run, changed(run, change.setting, "seed")):
        found = measure(change.tool, told)
        assert found["first_bad_step"] is None
        assert found["settings_from_step"] == RESUME


@each_change
def test_a_difference_that_outlasts_the_resume_is_one(
    launched: Callable[..., Run], measure: Measure, change: Change
) -> None:
    found = measure(change.tool, launched(change, ("earlier", LAST)))
    assert found["from_start"]
    assert found["settings_from_step"] is None


@each_change
def test_a_difference_that_begins_at_the_resume_is_one(
    launched: Callable[..., Run], measure: Measure, change: Change
) -> None:
    found = measure(change.tool, launched(change, ("later", RESUME - 1), ("earlier", LAST)))
    assert (found["last_good_step"], found["first_bad_step"]) == (RESUME - 1, RESUME)
    assert found["settings_from_step"] is None


@each_change
def test_a_difference_under_settings_that_did_not_change_is_one(
    launched: Callable[..., Run], measure: Measure, change: Change
) -> None:
    run = launched(change, ("earlier", RESUME - 1), ("later", LAST))
    for told in (changed(run), changed(run, "seed"), replace(run, events=())):
        found = measure(change.tool, told)
        assert found["from_start"]
        assert found["settings_from_step"] is None


@pytest.mark.parametrize("tool", ["recompute_means", "recompute_advantages"])
def test_a_difference_that_begins_inside_the_first_launch_is_one(
    launched: Callable[..., Run], measure: Measure, tool: str
) -> None:
    run = launched(BY_TOOL[tool], ("later", 10), ("earlier", RESUME - 1), ("later", LAST))
    found = measure(tool, run)
    assert (found["last_good_step"], found["first_bad_step"]) == (10, 11)


@pytest.mark.parametrize("tool", ["recompute_means", "recompute_advantages"])
def test_a_fault_of_the_last_launch_is_dated_after_other_settings(
    launched: Callable[..., Run], measure: Measure, tool: str
) -> None:
    run = launched(BY_TOOL[tool], ("earlier", RESUME - 1), ("later", 45), ("earlier", LAST))
    found = measure(tool, run)
    assert (found["last_good_step"], found["first_bad_step"]) == (45, 46)
    assert found["settings_from_step"] == RESUME


def test_of_several_resumes_the_one_that_brought_the_settings_counts(
    launched: Callable[..., Run], measure: Measure
) -> None:
    run = launched(BY_TOOL["recompute_means"], ("earlier", 30), ("later", LAST))
    events = tuple(Event("resume", step, "resumed", "train.log") for step in (50, 16, 31))
    found = measure("recompute_means", replace(run, events=events))
    assert (found["first_bad_step"], found["settings_from_step"]) == (None, 31)


@pytest.mark.parametrize(("first", "left_out"), [(4, True), (9, False)])
def test_what_differs_by_chance_need_not_show_at_once(
    launched: Callable[..., Run], measure: Measure, first: int, left_out: bool
) -> None:
    run = launched(
        BY_TOOL["recompute_means"], ("later", first - 1), ("earlier", RESUME - 1), ("later", LAST)
    )
    found = measure("recompute_means", run)
    assert found["first_bad_step"] == (None if left_out else first)


def test_too_few_steps_after_a_change_say_nothing(
    launched: Callable[..., Run], measure: Measure, missing: Missing
) -> None:
    change = BY_TOOL["check_loss_identity"]
    run = launched(change, ("earlier", 52), ("later", LAST), resume=53)
    told = missing(change.tool, changed(run, change.setting))
    assert told.startswith("other settings until step 53, and then: 8 steps")
    assert measure(change.tool, run)["from_start"]  # nothing says that they changed


def test_halves_of_larger_groups_are_no_repeated_prompts(
    launched: Callable[..., Run], measure: Measure
) -> None:
    change = Change("", "", {"groups": 4, "size": 8}, {"groups": 8, "size": 4})
    run = launched(change, ("earlier", RESUME - 1), ("later", LAST))
    # As read by position, with the size on file: each group of eight is taken for two of four.
    batches = {b.step: replace(b, group=np.arange(32) // 4) for b in run.rollouts.batches()}
    read = Rollouts(list(batches), lambda steps: map(batches.__getitem__, steps))
    run = replace(run, rollouts=read)
    for tool in ("check_prompt_variety", "recompute_advantages"):
        found = measure(tool, run)
        assert (found["first_bad_step"], found["settings_from_step"]) == (None, RESUME)
        assert measure(tool, replace(run, events=()))["from_start"]


# ------------------------------------------------------- tools that read one launch or the other


def relaunched(run: Run, *changed: str) -> Run:
    """The run, resumed at `RESUME` with other values of some settings."""
    event = Event("resume", RESUME, "resumed", "log")
    return replace(
        run, config=replace(run.config, changed=frozenset(changed)), events=(*run.events, event)
    )


def test_a_kl_weight_holds_for_its_own_launch(
    make_run: MakeRun, batch: Callable[..., Any], measure: Measure
) -> None:
    """KL of 0.04 under a small weight, then 0.001 under the one of 0.2 that is on file."""
    batches = [
        batch(s, rewards={"correct": [1, 0, 1, 0]}, advantage=[1, -1, 1, -1])
        for s in range(1, LAST + 1)
    ]
    steps = np.arange(1, LAST + 1)
    run = make_run(
        rollouts=batches,
        signals={
            "kl_ref": np.where(steps < 55, 0.2, 0.001),
            "completion_length_mean": np.full(LAST, 50.0),
            "reward_mean": 0.5 + 0.1 * (steps % 2),
        },
        config={"beta": 0.2},
    )
    late = replace(run, events=(Event("resume", 46, "resumed", "log"),))
    late = replace(late, config=replace(run.config, changed=frozenset({"beta"})))
    mixed, own = measure("measure_kl_budget", run), measure("measure_kl_budget", late)
    assert mixed["kl_late"] > 0.1
    assert own["kl_late"] == pytest.approx(0.001)
    assert (mixed["settings_from_step"], own["settings_from_step"]) == (None, 46)
    assert own["first_bad_step"] is None
    seed_alone = replace(late, config=replace(run.config, changed=frozenset({"seed"})))
    assert measure("measure_kl_budget", seed_alone) == mixed


def test_a_cap_holds_for_its_own_launch(make_run: MakeRun, measure: Measure) -> None:
    steps = np.arange(1, LAST + 1)
    run = make_run(
        signals={"truncation_rate": np.where(steps < RESUME, 0.9, 0.0)},
        config={"max_completion_length": 256},
    )
    whole = measure("check_truncation", run)
    assert (whole["truncated_first"], whole["from_start"]) == (pytest.approx(0.9), True)
    own = measure("check_truncation", relaunched(run, "max_completion_length"))
    assert (own["truncated_first"], own["first_bad_step"]) == (0, None)
    assert own["settings_from_step"] == RESUME


@pytest.mark.parametrize("onset", [15, 40])
def test_updates_per_batch_explain_only_their_own_launch(
    make_run: MakeRun, measure: Measure, onset: int
) -> None:
    steps = np.arange(1, LAST + 1)
    after = steps >= onset
    run = make_run(
        signals={
            "grad_norm_preclip": np.where(after, 4.0, 1.0),
            "kl_ref": np.where(after, 1.0, 0.02),
            "entropy": np.full(LAST, 1.0),
            "reward_mean": np.where(after, 0.1, 0.8),
        },
        config={"num_iterations": 4, "gradient_accumulation_steps": 1, "steps_per_generation": 1},
    )
    assert measure("check_step_size", run)["reuse_alarm"]
    found = measure("check_step_size", relaunched(run, "num_iterations"))
    assert (found["reuse_alarm"], found["runaway"]) == (onset > RESUME, onset < RESUME)
    assert found["first_bad_step"] == onset
    assert found["settings_from_step"] == RESUME


def test_a_group_size_holds_for_its_own_launch(
    make_run: MakeRun, batch: Callable[..., Any]
) -> None:
    """Groups of four before the resume, of eight after it; the settings on file say eight."""
    rows = [
        batch(
            s,
            rewards={"correct": [1, 0] * 4},
            group=[0] * 4 + [1] * 4 if s < RESUME else [0] * 8,
        )
        for s in (RESUME - 1, RESUME)
    ]
    run = make_run(rollouts=rows, config={"num_generations": 8})
    earlier, later = run.rollouts.batches()
    assert not whole_groups(run, earlier).any()
    told = relaunched(run, "num_generations")
    assert whole_groups(told, earlier).all()
    assert whole_groups(told, later).all()
