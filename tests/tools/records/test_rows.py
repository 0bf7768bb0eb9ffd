"""Identity of rollout rows: whole groups of one prompt, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.readers.grouping import group_rows
from firstbad.tools.run import RolloutBatch, Run

TOOL = "check_rows"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def test_hand_counted_steps(
    make_run: MakeRun, batch: MakeBatch, evidence: Callable[..., Evidence]
) -> None:
    nan = float("nan")

    def rows(step: int, group: list[int], prompts: str, **fields: Any) -> RolloutBatch:
        names = [f"add {p}" for p in prompts]
        rewards = {"correct": fields.pop("score", [1.0] * len(group))}
        said = [f"row of {g}" for g in group]
        return batch(step, group=group, prompts=names, completions=said, rewards=rewards, **fields)

    made = [
        rows(1, [0, 0, 1, 1], "aabb"),  # sound
        rows(2, [0, 1, 0, 1], "abab"),  # interleaved
        rows(3, [0, 0, 0, 1], "aaab"),  # uneven
        rows(4, [0, 0, 1, 1], "abbb"),  # a group with two prompts
        rows(5, [0, 0], "aa"),  # fewer rows
        rows(6, [0, 0, 1, 1], "aabb", score=[1, 0, nan, 1]),  # a score is missing
        rows(7, [0, 0, 1, 1], "aabb", repeats_step=6),
    ]
    found = evidence(TOOL, make_run(rollouts=made))
    metrics = found.metrics
    assert metrics is not None
    assert (metrics["n_steps"], metrics["n_rows"], metrics["group_size"]) == (6, 22, 2)
    assert (metrics["steps_uneven"], metrics["steps_interleaved"]) == (1, 2)
    assert metrics["share_steps_broken"] == 0.5
    assert metrics["steps_row_count_differs"] == 1
    assert metrics["steps_short_scores"] == 1
    assert metrics["steps_repeated"] == 1
    assert (metrics["last_good_step"], metrics["first_bad_step"]) == (1, 2)
    assert found.tables[0].rows == ((2, "interleaved"), (3, "uneven"), (4, "interleaved"))


def interleave(changed: SimpleNamespace, b: RolloutBatch) -> RolloutBatch:
    rows = [g * 8 + i for i in range(8) for g in range(4)]
    mixed: RolloutBatch = changed.reorder(b, rows)
    return mixed


def wrong_prompts(changed: SimpleNamespace, b: RolloutBatch) -> RolloutBatch:
    """The prompts are shuffled against the groups."""
    order = np.random.default_rng(b.step).permutation(len(b))
    return replace(b, prompts=[b.prompts[i] for i in order])


def lose_a_row(changed: SimpleNamespace, b: RolloutBatch) -> RolloutBatch:
    short: RolloutBatch = changed.reorder(b, list(range(31)))
    return short


@pytest.mark.parametrize(
    ("fault", "shows"),
    [
        (interleave, "steps_interleaved"),
        (wrong_prompts, "steps_interleaved"),
        (lose_a_row, "steps_uneven"),
    ],
)
def test_rows_that_lose_their_group_are_dated(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    fault: Callable[[SimpleNamespace, RolloutBatch], RolloutBatch],
    shows: str,
) -> None:
    run = changed.rebatch(simulate(1), lambda b: fault(changed, b) if b.step >= ONSET else b)
    found = measure(TOOL, run)
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["share_steps_broken"] == 0.5
    assert found[shows] == 30
    assert found["group_size"] == 8


def test_broken_from_the_start(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    run = changed.rebatch(simulate(1, steps=8), lambda b: interleave(changed, b))
    found = measure(TOOL, run)
    assert found["from_start"]
    assert (found["last_good_step"], found["first_bad_step"]) == (None, 1)


def test_sound_rows(healthy: Run, measure: Measure) -> None:
    found = measure(TOOL, healthy)
    assert found["share_steps_broken"] == found["steps_row_count_differs"] == 0
    assert found["order_expected"]
    assert (found["last_good_step"], found["first_bad_step"]) == (60, None)


def test_a_short_last_batch_and_unscored_rows_break_no_group(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    def change(b: RolloutBatch) -> RolloutBatch:
        if b.step == 60:
            b = changed.reorder(b, list(range(16)))
        b.rewards["format"][0] = np.nan
        return b

    found = measure(TOOL, changed.rebatch(simulate(1), change))
    assert (found["steps_row_count_differs"], found["steps_short_scores"]) == (1, 60)
    assert found["share_steps_broken"] == 0
    assert found["first_bad_step"] is None


def test_the_same_prompt_twice_in_a_step_makes_two_groups(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = batch(group=[0, 0, 1, 1], prompts=["add a"] * 4, completions=list("wxyz"))
    assert measure(TOOL, make_run(rollouts=[rows]))["share_steps_broken"] == 0


def test_the_size_of_the_config_counts(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = batch(group=[0, 0, 1, 1], prompts=list("aabb"), completions=list("wxyz"))
    found = measure(TOOL, make_run(rollouts=[rows], config={"num_generations": 4}))
    assert (found["group_size"], found["steps_uneven"]) == (4, 1)


def test_order_is_promised_by_some_sources_only(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = batch(prompts=list("aabb"), completions=list("wxyz"), size=2, group_source="prompt")
    assert measure(TOOL, make_run(rollouts=[rows]))["order_expected"]
    assert not measure(TOOL, make_run(rollouts=[rows], framework="csv"))["order_expected"]


@pytest.mark.parametrize(("generated", "complete"), [(32, True), (64, False), (None, None)])
def test_rows_that_the_config_generates_and_the_file_does_not_hold(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    generated: int | None,
    complete: bool | None,
) -> None:
    run = simulate(1, steps=6, config={"generation_batch_size": generated})
    run = changed.relog(run, **{"reward_part/correct": np.linspace(0.1, 0.6, 6)})
    assert measure(TOOL, run)["complete"] is complete


def test_a_file_in_another_order_is_told_from_training_in_another_order(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    """Rows are interleaved; advantages follow their prompts, or the places they stand in."""

    def written(b: RolloutBatch) -> RolloutBatch:
        return replace(interleave(changed, b), group=b.group)

    run = changed.rebatch(simulate(1, steps=6), written)
    assert measure(TOOL, run)["advantages_follow_prompts"] is True
    assert measure(TOOL, simulate(1, steps=6))["advantages_follow_prompts"] is None

    def trained(b: RolloutBatch) -> RolloutBatch:
        return replace(written(b), advantage=b.advantage)

    run = changed.rebatch(simulate(1, steps=6), trained)
    assert measure(TOOL, run)["advantages_follow_prompts"] is False


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "completions with their prompts" in missing(TOOL, make_run())


@settings(max_examples=8, derandomize=True)
@given(
    order=st.permutations(range(4)),
    rows=st.permutations(range(8)),
    by=st.integers(0, 1000),
    first=st.integers(0, 50),
)
def test_order_of_groups_and_of_rows_inside_them_and_their_numbers_do_not_matter(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    rows: list[int],
    by: int,
    first: int,
) -> None:
    run = simulate(1, steps=20)
    run = changed.rebatch(run, lambda b: interleave(changed, b) if b.step >= 11 else b)
    before = measure(TOOL, run)

    def change(b: RolloutBatch) -> RolloutBatch:
        if b.step < 11:
            inside = [8 * g + r for g in range(4) for r in rows]
            b = changed.reorder_groups(changed.reorder(b, inside), order)
        return replace(b, group=b.group + first)

    after = measure(TOOL, changed.shift_steps(changed.rebatch(run, change), by))
    assert after == changed.dates_moved(before, by)
    assert before["first_bad_step"] == 11


def test_prompts_that_cannot_tell_groups(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # A nonce in each prompt, or prompts that are missing: rows of a group stand side by side still.
    unlike = [f"add 1 and 2 ({i})" for i in range(8)]
    for prompts in (unlike, ["add 1", "", "", "add 1", "add 2", "", "add 2", ""]):
        rows = [batch(s, rewards={"correct": [1, 0] * 4}, prompts=prompts, size=4) for s in (1, 2)]
        found = measure(TOOL, make_run(rollouts=rows, config={"num_generations": 4}))
        assert (found["steps_uneven"], found["steps_interleaved"]) == (0, 0)
        assert group_rows(prompts, 4)[0].tolist() == [0] * 4 + [1] * 4
