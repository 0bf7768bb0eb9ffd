"""Entropy or length that changes from one step to the next, and what explains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "find_sudden_change"
AT = 50

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def noisy(level: Any, seed: int = 0) -> Any:
    return level + 0.03 * np.random.default_rng(seed).normal(size=80)


def jump(before: float = 1.15, after: float = 0.67) -> Any:
    return noisy(np.where(np.arange(1, 81) < AT, before, after))


def asked(batch: MakeBatch, prompt: Callable[[int, int], str]) -> list[RolloutBatch]:
    return [
        batch(s, prompts=[prompt(s, g) for g in range(4)], group=range(4)) for s in range(1, 81)
    ]


def digits(step: int, group: int, size: int = 5) -> str:
    drawn = np.random.default_rng(100 * step + group).integers(0, 10, size)
    return "sort : " + " ".join(map(str, drawn))


def test_a_fall_in_one_step_is_measured(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    found = measure(TOOL, make_run(signals={"entropy": jump()}, rollouts=asked(batch, digits)))
    assert found["found"]
    assert (found["last_good_step"], found["first_bad_step"]) == (AT - 1, AT)
    assert found["moved_share"] == pytest.approx((1.15 - 0.67) / 1.15, abs=0.03)
    assert found["at_once_share"] == pytest.approx(1, abs=0.25)
    assert (found["n_updates"], found["prompts_changed"], found["explained"]) == (1, False, False)


def test_a_quick_slide_is_not_made_at_once(make_run: MakeRun, measure: Measure) -> None:
    slide = noisy(np.interp(np.arange(1, 81), [AT, AT + 10], [1.15, 0.5]))
    found = measure(TOOL, make_run(signals={"entropy": slide}))
    assert found["found"]
    assert found["at_once_share"] < 0.5


def test_a_slow_fall_is_none(make_run: MakeRun, measure: Measure) -> None:
    fall = noisy(np.linspace(1.2, 0.7, 80))
    assert not measure(TOOL, make_run(signals={"entropy": fall}))["found"]


def test_the_signal_that_moves_most_is_told(make_run: MakeRun, measure: Measure) -> None:
    signals = {"entropy": jump(), "completion_length_mean": 10 * jump(1.4, 4.0)}
    found = measure(TOOL, make_run(signals=signals))
    assert not found["signal_is_entropy"]
    assert found["after"] == pytest.approx(40, abs=1)


@pytest.mark.parametrize(
    "prompt",
    [
        lambda s, g: digits(s, g, 5 if s < AT else 6),
        lambda s, g: digits(s, g).replace("sort", "sort" if s < AT else "reverse"),
    ],
    ids=["longer", "other words"],
)
def test_other_prompts_explain_it(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, prompt: Callable[[int, int], str]
) -> None:
    found = measure(TOOL, make_run(signals={"entropy": jump()}, rollouts=asked(batch, prompt)))
    assert (found["prompts_changed"], found["explained"]) == (True, True)


@pytest.mark.parametrize(
    ("kind", "step", "changed", "explained"),
    [
        ("phase", AT, None, True),
        ("phase", AT - 20, None, False),
        ("warning", AT, None, False),
        ("resume", AT, None, True),
        ("resume", AT, frozenset({"temperature"}), True),
        ("resume", AT, frozenset(), False),
        ("resume", AT - 20, None, False),
    ],
)
def test_an_event_explains_it_where_it_may_have_changed_something(
    make_run: MakeRun,
    measure: Measure,
    kind: str,
    step: int,
    changed: frozenset[str] | None,
    explained: bool,
) -> None:
    run = make_run(signals={"entropy": jump()}, events=[(kind, step, "")])
    run = replace(run, config=replace(run.config, changed=changed))
    assert measure(TOOL, run)["explained"] == explained


def test_updates_between_two_rollout_batches_are_counted(
    make_run: MakeRun, measure: Measure
) -> None:
    settings = {"num_iterations": 16, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
    assert measure(TOOL, make_run(signals={"entropy": jump()}, config=settings))["n_updates"] == 16
