"""A lasting change of what prompts look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import RolloutBatch, Run

TOOL = "compare_prompts"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def draw(
    batch: MakeBatch, steps: int, prompt: Callable[[int, int], str], groups: int = 4
) -> list[RolloutBatch]:
    """Groups of two with the prompt of their step and place."""
    return [
        batch(
            s,
            prompts=[prompt(s, g) for g in range(groups) for _ in (0, 1)],
            completions=["x"] * (2 * groups),
            group=np.repeat(np.arange(groups), 2),
        )
        for s in range(1, steps + 1)
    ]


def test_hand_computed_change(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Five steps with prompts of two words, five with four: both sides alike, so no spread at all.
    # Of the words after (ask, me, for, 6 ... 10) only `ask` and `me` were there before: 2 of 4.
    rows = draw(batch, 10, lambda s, g: "ask me" if s <= 5 else f"ask me for {s}")
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["n_steps"], found["n_distinct"]) == (10, 6)
    assert (found["words_before"], found["words_after"]) == (2, 4)
    assert found["new_words_share"] == 0.5
    assert found["changed"]
    assert (found["last_good_step"], found["first_bad_step"]) == (5, 6)
    assert found["steps_off"] is None
    run = make_run(rollouts=rows)
    assert measure(TOOL, run, at_step=8)["steps_off"] == 2
    alike = make_run(rollouts=draw(batch, 10, lambda s, g: "ask me"))
    assert measure(TOOL, alike, at_step=6)["steps_off"] is None


def test_other_prompts_from_a_step_on(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    def prompt(step: int, group: int) -> str:
        plain = f"add {step} and {group}"
        return plain if step < ONSET else f"prove carefully and in full that {plain} is even"

    found = measure(TOOL, make_run(rollouts=draw(batch, 60, prompt)))
    assert found["changed"]
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert (found["words_before"], found["words_after"]) == (4, 12)
    assert found["shift_sds"] > 5
    # Of twelve words `add`, `and`, and the small numbers were there before.
    assert 0.4 < found["new_words_share"] < 0.8


def test_prompts_of_varied_length_are_no_change(simulate: MakeRun, measure: Measure) -> None:
    def vary(d: SimpleNamespace) -> None:
        more = d.rng.integers(0, 12, 4)
        d.prompts = [p + " please" * int(more[g]) for p, g in zip(d.prompts, d.group, strict=True)]

    found = measure(TOOL, simulate(1, edit=vary))
    assert not found["changed"]
    assert found["first_bad_step"] is None


def test_one_odd_step_is_no_change(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    def prompt(step: int, group: int) -> str:
        return f"add {step} and {group}" + " please" * (20 if step == ONSET else 0)

    found = measure(TOOL, make_run(rollouts=draw(batch, 60, prompt)))
    assert not found["changed"]


def test_a_slow_curriculum_is_no_jump(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = draw(batch, 60, lambda s, g: f"add {s} and {g}" + " more" * (s // 6))
    assert not measure(TOOL, make_run(rollouts=rows))["changed"]


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "prompts" in missing(TOOL, make_run())


@settings(max_examples=8, derandomize=True)
@given(order=st.permutations(range(4)), by=st.integers(0, 1000), renamed=st.booleans())
def test_order_of_groups_step_numbers_and_wording_do_not_matter(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    by: int,
    renamed: bool,
) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step >= 16:
            d.prompts = [f"{p} and show each carry as you go along" for p in d.prompts]

    run = simulate(1, steps=30, edit=edit)
    before = measure(TOOL, run)
    assert before["first_bad_step"] == 16

    def change(b: RolloutBatch) -> RolloutBatch:
        moved: RolloutBatch = changed.reorder_groups(b, order)
        if renamed:
            moved = replace(moved, prompts=[p.replace("add", "sum") for p in moved.prompts])
        return moved

    after = measure(TOOL, changed.shift_steps(changed.rebatch(run, change), by))
    assert after == changed.dates_moved(before, by)


def phase_of(step: int, group: int) -> str:
    """A curriculum: three digits, then four or five, then six."""
    digits = 3 if step < 31 else 4 + (step + group) % 2 if step < 66 else 6
    return f"sort {step}.{group} : " + " ".join("7" * digits)


def test_phases_that_follow_each_other_are_told_apart(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # Over the whole run the middle phase widens both sides, so that no one level shift is clear.
    found = measure(TOOL, make_run(rollouts=draw(batch, 100, phase_of)))
    assert (found["changed"], found["n_changes"], found["apart"]) == (True, 2, 1.0)
    assert (found["last_good_step"], found["first_bad_step"]) == (30, 31)
    assert (found["words_before"], found["words_after"]) == (6.0, 7.5)


def test_a_mix_that_stays_is_one_kind_however_wide_it_is(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    def mixed(step: int, group: int) -> str:
        return f"sort {step}.{group} : " + " ".join("7" * (3 + 3 * ((step * 7 + group * 5) % 4)))

    found = measure(TOOL, make_run(rollouts=draw(batch, 100, mixed)))
    assert (found["changed"], found["n_changes"]) == (False, 0)
    assert found["apart"] < 0.6
    few = measure(TOOL, make_run(rollouts=draw(batch, 100, phase_of, groups=1)))
    assert few["apart"] is None  # ten prompts on a side tell too little


def test_a_few_prompts_that_come_round_are_no_phases(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = draw(batch, 100, lambda s, g: "sort :" + " 7" * (3 + (s // 10) % 2 * 4))
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["changed"], found["apart"]) == (False, None)
