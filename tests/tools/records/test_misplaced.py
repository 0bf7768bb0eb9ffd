"""Completions beside other prompts than they answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import RolloutBatch, Run

TOOL = "find_misplaced"
GROUP, PROMPTS, STEPS, ONSET = 4, 5, 12, 7

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Places = Callable[[int], Sequence[int]]


def in_place(step: int) -> Sequence[int]:
    return range(GROUP * PROMPTS)


def halves(step: int) -> Sequence[int]:
    """From the onset on two samples of each prompt stand beside the next prompt."""
    n = GROUP * PROMPTS
    if step < ONSET:
        return range(n)
    return [(i - GROUP) % n if i % GROUP < 2 else i for i in range(n)]


def whole_groups(step: int) -> Sequence[int]:
    """From the onset on the answers of each prompt stand beside the next one, all of them."""
    n = GROUP * PROMPTS
    return [(i - GROUP) % n for i in range(n)] if step >= ONSET else range(n)


def rollouts(
    batch: MakeBatch, places: Places, *, kinds: int = 1000, guesses: bool = False
) -> list[RolloutBatch]:
    """Each prompt asks for a number, and every sample gives it, or guesses."""
    rng = np.random.default_rng(0)
    made = []
    for step in range(1, STEPS + 1):
        asked = [(step * PROMPTS + g) * 3 % kinds for g in range(PROMPTS) for _ in range(GROUP)]
        said = [f"<answer>{asked[i]}</answer>" for i in places(step)]
        if guesses:
            said = [f"<answer>{n}</answer>" for n in rng.integers(0, kinds, len(asked)).tolist()]
        made.append(
            batch(
                step,
                prompts=[f"say {a}" for a in asked],
                completions=said,
                group=np.repeat(np.arange(PROMPTS), GROUP),
                gold=[str(a) for a in asked],
            )
        )
    return made


def test_hand_computed_halves(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Two of four samples of each prompt give the number of the prompt before it.
    found = measure(TOOL, make_run(rollouts=rollouts(batch, halves)))
    assert found["misplaced_share"] == 0.5
    assert (found["chance_share"], found["misplaced_before"]) == (0.0, 0.0)
    assert found["mixed_share"] == 1.0
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["excess_z"] == pytest.approx((6 * 10) ** 0.5, abs=1e-3)


def test_whole_groups_are_not_mixed(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    """That is what gold answers of other prompts look like as well."""
    found = measure(TOOL, make_run(rollouts=rollouts(batch, whole_groups)))
    assert (found["misplaced_share"], found["mixed_share"]) == (1.0, 0.0)


def test_answers_in_place(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    found = measure(TOOL, make_run(rollouts=rollouts(batch, in_place)))
    assert (found["n_rows"], found["misplaced_share"]) == (GROUP * PROMPTS * STEPS, 0.0)
    assert found["first_bad_step"] is None


def test_few_kinds_of_answers_coincide(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """A policy that guesses among seven numbers hits that of another prompt by chance."""
    made = rollouts(batch, in_place, kinds=7, guesses=True)
    found = measure(TOOL, make_run(rollouts=made))
    assert found["misplaced_share"] > 0.4
    assert abs(found["excess_z"]) < 4
    assert found["first_bad_step"] is None


@settings(max_examples=8, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_samples_of_a_prompt_may_change_places(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, seed: int
) -> None:
    rng = np.random.default_rng(seed)

    def within(step: int) -> Sequence[int]:
        own = halves(step)
        orders = [g + rng.permutation(GROUP) for g in range(0, GROUP * PROMPTS, GROUP)]
        return [own[i] for i in np.concatenate(orders).tolist()]

    moved = measure(TOOL, make_run(rollouts=rollouts(batch, within)))
    assert moved == measure(TOOL, make_run(rollouts=rollouts(batch, halves)))


def test_without_data(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    assert "right answers" in missing(TOOL, make_run())
    few = rollouts(batch, in_place)[:2]
    assert "60 are needed" in missing(TOOL, make_run(rollouts=few))


def test_prompts_that_are_confused_by_nature_do_not_rise(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """Two questions of one passage: one sample of four answers the other one, all along."""
    n = GROUP * PROMPTS

    def confused(step: int) -> Sequence[int]:
        return [(i - GROUP) % n if i % GROUP == 0 else i for i in range(n)]

    found = measure(TOOL, make_run(rollouts=rollouts(batch, confused)))
    assert found["misplaced_share"] == 0.25
    assert found["rise"] is None
    assert measure(TOOL, make_run(rollouts=rollouts(batch, halves)))["rise"] == 100
