"""Repeated prompts within a step and in neighbouring steps."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import RolloutBatch, Run

TOOL = "check_prompt_variety"
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


def test_hand_counted_prompts(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Step 1: a a b; step 2: b c d; step 3: a b c. Repeats inside the step: 1/3, 0, 0. Seen the
    # step before: nothing yet; b of b c d; b and c of a b c: (0 + 1/3 + 2/3)/3 = 1/3. Seen at any
    # earlier step: 0, 1/3, and all three: (0 + 1/3 + 1)/3 = 4/9. By chance, 3 of the 4 distinct
    # prompts stand in a step. All steps together have fewer than 30 groups: the worst is the mean.
    names = [["a", "a", "b"], ["b", "c", "d"], ["a", "b", "c"]]
    rows = draw(batch, 3, lambda s, g: f"prompt {names[s - 1][g]}", groups=3)
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["n_steps"], found["n_distinct"], found["groups_per_step"]) == (3, 4, 3)
    assert found["duplicate_share"] == pytest.approx(1 / 9, abs=1e-6)
    assert found["duplicate_share_worst"] == pytest.approx(1 / 9, abs=1e-6)
    assert found["duplicate_excess"] == pytest.approx(1 / 9 - 0.75 / 2, abs=1e-6)
    assert found["adjacent_share"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["adjacent_share_worst"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["adjacent_excess"] == pytest.approx(1 / 3 - 0.75, abs=1e-6)
    assert found["repeated_share"] == pytest.approx(4 / 9, abs=1e-6)
    assert found["first_bad_step"] is None


def test_one_coincidence_of_two_groups_is_no_half(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = draw(batch, 5, lambda s, g: f"add {s} and {0 if s == 3 else g}", groups=2)
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["duplicate_share"] == found["duplicate_share_worst"] == 0.1


def test_the_same_prompt_on_every_rank(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = draw(batch, 60, lambda s, g: f"add {s} and {g if s < ONSET else g % 2}")
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["duplicate_share"] == 0.25
    assert found["duplicate_share_worst"] == 0.5
    assert found["duplicate_excess"] > 0.4
    assert found["adjacent_share"] == 0
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert not found["from_start"]


def test_the_batch_of_the_step_before(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = draw(
        batch, 60, lambda s, g: f"add {s if s < ONSET else ONSET + (s - ONSET) // 8} and {g}"
    )
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["adjacent_share_worst"] == 0.875  # eight steps have 32 groups, one is new
    assert found["adjacent_excess"] > 0.8
    assert found["duplicate_share"] == 0
    # The first prompts of the kind that stays are new; the step after has them again.
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET, ONSET + 1)


def test_repeated_from_the_start(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    rows = draw(batch, 20, lambda s, g: f"add {s} and {g % 2}")
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["from_start"]
    assert (found["last_good_step"], found["first_bad_step"]) == (None, 1)


def test_a_small_set_of_prompts_repeats_by_chance(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rng = np.random.default_rng(0)
    drawn = [rng.choice(40, 4, replace=False) for _ in range(60)]
    rows = draw(batch, 60, lambda s, g: f"add {drawn[s - 1][g]}")
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["repeated_share"] > 0.7
    assert found["adjacent_share"] == pytest.approx(0.1, abs=0.06)
    assert found["duplicate_excess"] < 0
    assert found["first_bad_step"] is None


def test_two_steps_alike_are_no_lack_of_variety(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = draw(batch, 60, lambda s, g: f"add {ONSET if s == ONSET + 1 else s} and {g}")
    assert measure(TOOL, make_run(rollouts=rows))["first_bad_step"] is None


def test_a_second_epoch_repeats_every_prompt_and_lacks_none(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rows = draw(batch, 60, lambda s, g: f"add {s % 30} and {g}")
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["repeated_share"] == 0.5
    assert found["adjacent_share"] == found["duplicate_share"] == 0
    assert found["first_bad_step"] is None


def twice(batch: MakeBatch, same: Callable[[int], bool], since: int = 1) -> list[RolloutBatch]:
    """Four prompts a step in two blocks of three rows each; `same` steps hold one block twice."""
    rows = []
    for s in range(1, 41):
        said = np.random.default_rng(s).integers(0, 3, (2, 4, 3))
        if same(s):
            said[1] = said[0]
        asked = [f"add {s} and {g}" if s >= since or block == 0 else f"take {g} from {s}"
                 for block in (0, 1) for g in range(4) for _ in range(3)]  # fmt: skip
        texts = [f"x {word}" for word in said.ravel().tolist()]
        rows.append(batch(s, prompts=asked, completions=texts, group=np.repeat(np.arange(8), 3)))
    return rows


def test_a_group_in_blocks_is_a_design(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """Each text is one of three, so that a third of them is the same at any two places."""
    found = measure(TOOL, make_run(rollouts=twice(batch, lambda s: False)))
    assert (found["copies"], found["duplicate_share"]) == (2, 0.5)
    assert found["copies_alike"] == pytest.approx(1 / 3, abs=0.07)
    assert found["copies_alike_least"] < 0


def test_blocks_that_are_the_same_are_none(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    found = measure(TOOL, make_run(rollouts=twice(batch, lambda s: True)))
    assert (found["copies"], found["copies_alike"]) == (2, 1)
    assert 0.5 < found["copies_alike_least"] < 2 / 3
    half = measure(TOOL, make_run(rollouts=twice(batch, lambda s: s > 20)))
    assert half["copies_alike_least"] > 0.1


def test_copies_since_a_later_step_are_no_design(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    found = measure(TOOL, make_run(rollouts=twice(batch, lambda s: False, since=3)))
    assert found["copies"] is None
    assert found["duplicate_excess"] > 0.3
    assert (found["first_bad_step"], found["copies_alike_least"]) == (3, None)


@pytest.mark.parametrize(
    ("asked", "copies"),
    [
        (lambda s: "aa", 2),  # one prompt a step, in two blocks
        (lambda s: "aabbcd", 2),  # hard prompts get two groups
        (lambda s: ("aabbcd", "abccdd", "aaabcc")[s % 3], 2),  # ... up to three, as it comes
        (lambda s: "aabcdefg" if s < 20 else "aabbccdd", None),  # the repeats become far more
        (lambda s: "abcdef" if s < 2 else "aabbcd", None),
    ],
    ids=["one prompt", "hard ones twice", "by need", "more since step 20", "since step 2"],
)
def test_repeats_from_the_first_step_on_are_a_design(
    make_run: MakeRun, batch: MakeBatch, measure: Measure,
    asked: Callable[[int], str], copies: int | None,
) -> None:  # fmt: skip
    rows = []
    for s in range(1, 41):
        group = np.repeat(np.arange(len(asked(s))), 3)
        said = np.random.default_rng(s).integers(0, 3, len(group)).tolist()
        prompts = [f"take {asked(s)[g]} from {s}" for g in group.tolist()]
        rows.append(batch(s, prompts=prompts, completions=[f"x {w}" for w in said], group=group))
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["copies"] == copies
    assert (found["copies_alike_least"] is None) == (copies is None)
    assert copies is None or found["copies_alike_least"] < 0


def test_a_last_step_that_is_a_part_of_one(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    part = batch(41, prompts=list("aabb"), completions=list("wxyz"), group=np.array([0, 0, 1, 1]))
    rows = [*twice(batch, lambda s: False), part]
    assert measure(TOOL, make_run(rollouts=rows))["copies"] == 2


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "prompts" in missing(TOOL, make_run())


@settings(max_examples=8, derandomize=True)
@given(order=st.permutations(range(4)), by=st.integers(0, 1000), word=st.sampled_from(["x", "y z"]))
def test_order_of_groups_step_numbers_and_wording_do_not_matter(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    by: int,
    word: str,
) -> None:
    def run_of(more: str) -> Run:
        rows = draw(batch, 20, lambda s, g: f"add {s} and {g if s < 11 else g % 2} {more}")
        return make_run(rollouts=rows)

    before = measure(TOOL, run_of(""))
    assert before["first_bad_step"] == 11
    moved = changed.rebatch(run_of(word), lambda b: changed.reorder_groups(b, order))
    assert measure(TOOL, changed.shift_steps(moved, by)) == changed.dates_moved(before, by)


@pytest.mark.parametrize(
    ("versions", "size", "adjacent"),
    [
        ((0, 0, 2, 2), 4, 0.0),  # two updates on the halves of each group
        ((0, 1, 2, 3), 4, 0.5),  # sampled anew: the same prompts come again
        ((0, 0, 2, 2), 2, 0.5),  # whole groups: sampled twice by the same weights
        ((0, 0, 0, 0), 4, 0.0),
    ],
)
def test_parts_of_one_generation_are_not_drawn_again(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    versions: tuple[int, ...],
    size: int,
    adjacent: float,
) -> None:
    rows = draw(batch, 4, lambda s, g: f"prompt {(s - 1) // 2} {g}")
    for one, version in zip(rows, versions, strict=True):
        object.__setattr__(one, "policy_version", np.full(len(one), float(version)))
    found = measure(TOOL, make_run(rollouts=rows, config={"num_generations": size}))
    assert found["adjacent_share"] == adjacent
