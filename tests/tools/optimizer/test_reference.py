"""KL to the reference before any update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "check_reference"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("kl", "first_bad"), [(0.0, None), (0.01, None), (0.2, 1)])
def test_another_reference_is_one_from_the_start(
    make_run: MakeRun, measure: Measure, kl: float, first_bad: int | None
) -> None:
    found = measure(TOOL, make_run(signals={"kl_ref": [kl, 0.3, 0.3]}))
    assert found["kl_first"] == kl
    assert (found["first_bad_step"], found["from_start"]) == (first_bad, first_bad == 1)


def history(back: bool, returned: bool = False) -> dict[str, list[float]]:
    """KL that wanders off from 0, and from step 31 on begins anew, as reward does where asked."""
    moving = [0.002 * min(s, 20) + 0.004 * (s % 3) for s in range(60)]
    reward = [0.4 + 0.01 * s + 0.005 * (s % 2) for s in range(60)]
    if back:
        moving[30:] = [0.0, 0.0001, *(0.001 * s for s in range(28))]
    if returned:
        reward[30:] = reward[:30]
    return {"kl_ref": moving, "reward_mean": reward}


def test_a_reference_loaded_from_the_policy(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(config={"beta": 0.1}, signals=history(back=True)))
    assert found["kl_back"] == pytest.approx(0.0001 / found["kl_before"], abs=1e-4)
    assert (found["last_good_step"], found["first_bad_step"]) == (30, 31)
    assert not found["policy_back"]
    assert not found["from_start"]


def test_a_policy_loaded_from_the_beginning_is_told_apart(
    make_run: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, make_run(config={"beta": 0.1}, signals=history(back=True, returned=True)))
    assert found["policy_back"]
    assert found["first_bad_step"] == 31


def test_kl_that_wanders_is_no_return(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(config={"beta": 0.1}, signals=history(back=False)))
    assert found["kl_back"] > 0.02
    assert found["first_bad_step"] is None
    # A single low step is noise of a small batch.
    signals = history(back=False)
    signals["kl_ref"][40] = 0.0
    assert measure(TOOL, make_run(config={"beta": 0.1}, signals=signals))["first_bad_step"] is None


def test_a_reference_that_is_meant_to_follow(make_run: MakeRun, measure: Measure) -> None:
    found = measure(
        TOOL, make_run(config={"beta": 0.1, "sync_ref_model": True}, signals=history(back=True))
    )
    assert found["kl_back"] is found["first_bad_step"] is None


def test_without_settings_the_reference_may_be_meant_to_move(
    make_run: MakeRun, measure: Measure
) -> None:
    assert measure(TOOL, make_run(signals=history(back=True)))["first_bad_step"] is None


def test_two_rows_near_zero_are_no_new_beginning(make_run: MakeRun, measure: Measure) -> None:
    signals = history(back=False)
    signals["kl_ref"][40:42] = [0.0, 0.0]
    found = measure(TOOL, make_run(config={"beta": 0.1}, signals=signals))
    assert found["kl_back"] > 0.5
    assert found["first_bad_step"] is None


def test_a_dip_does_not_hide_the_new_beginning(make_run: MakeRun, measure: Measure) -> None:
    signals = history(back=True)
    signals["kl_ref"][20:22] = [0.0, 0.0]
    found = measure(TOOL, make_run(config={"beta": 0.1}, signals=signals))
    assert (found["last_good_step"], found["first_bad_step"]) == (30, 31)


def resumed(make_run: MakeRun, *, at: int = 31, leap: float = 0.4, entropy: float = 0.0) -> Run:
    """KL leaps at a step, and entropy with it where asked; the resume is at step 31."""
    signals = history(back=False)
    signals["kl_ref"] = [v + leap * (s >= at - 1) for s, v in enumerate(signals["kl_ref"])]
    signals["entropy"] = [2 + 0.02 * (s % 3) + entropy * (s >= at - 1) for s in range(60)]
    events = [("resume", 31, "again")]
    return make_run(config={"beta": 0.1}, signals=signals, events=events)


def test_another_reference_from_a_resume_on(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, resumed(make_run))
    assert found["kl_leapt_from"] == pytest.approx(0.044, abs=0.006)
    assert found["kl_leap"] == pytest.approx(0.4, abs=0.01)
    assert (found["last_good_step"], found["first_bad_step"]) == (30, 31)
    assert not found["from_start"]


def test_a_leap_of_the_policy_is_none_of_the_reference(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, resumed(make_run, entropy=0.5))
    assert (found["kl_leap"], found["first_bad_step"]) == (0, None)
    assert found["kl_at_once"] == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize(("at", "leap"), [(33, 0.4), (20, 0.4), (31, 0.01), (70, 0.4)])
def test_only_a_leap_in_the_first_step_of_a_resume_counts(
    make_run: MakeRun, measure: Measure, at: int, leap: float
) -> None:
    """Later ones lie behind updates, which may have made them."""
    found = measure(TOOL, resumed(make_run, at=at, leap=leap))
    assert (found["kl_leap"], found["kl_at_once"]) == (0, 0)
    assert found["first_bad_step"] is None


def test_without_kl(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "KL" in missing(TOOL, make_run())
    assert "step 1" in missing(TOOL, make_run(signals={"kl_ref": [0.2] * 8}, first_step=100))


@pytest.mark.parametrize(
    ("ask", "others"),
    [
        (lambda s: f"add {s} and {s + 7}", False),  # new numbers in every prompt, all along
        (lambda s: ["red", "blue", "green"][s % 3], False),
        (lambda s: ["red", "blue"][s % 2] if s < 31 else ["up", "down"][s % 2], True),
        (lambda s: f"add {s}" if s < 31 else f"divide by {s} what follows", True),
    ],
)
def test_prompts_that_the_policy_has_not_met(
    make_run: MakeRun,
    measure: Measure,
    batch: Callable[..., RolloutBatch],
    ask: Callable[[int], str],
    others: bool,
) -> None:
    rows = [batch(s, rewards={"correct": [1, 0]}, prompts=[ask(s)] * 2) for s in range(1, 61)]
    run = make_run(config={"beta": 0.1}, signals=history(back=True), rollouts=rows)
    assert measure(TOOL, run)["other_prompts"] is others


def test_a_phase_or_a_resume_on_record_there(make_run: MakeRun, measure: Measure) -> None:
    def run(*kinds: Any) -> Run:
        events = [(kind, 31, "") for kind in kinds]
        return make_run(config={"beta": 0.1}, signals=history(back=True), events=events)

    found = measure(TOOL, run())
    assert (found["other_prompts"], found["at_resume"]) == (None, False)
    assert measure(TOOL, run("phase"))["other_prompts"] is True
    assert measure(TOOL, run("resume"))["at_resume"] is True
