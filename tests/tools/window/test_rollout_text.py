"""Kinds of text before and after a step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.errors import ToolInputError
from firstbad.tools.evidence import Evidence
from firstbad.tools.registry import run_tool
from firstbad.tools.run import RolloutBatch, Run
from firstbad.tools.window.rollout_text import is_broken, is_garbage, is_repetitive

TOOL = "read_rollouts"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]

PLAIN = "so we add the tens first and then carry the one to get <answer> 42 </answer>"


def test_hand_counted_rows(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Before: four different texts of 2 words in one group. After: two the same (3 of 4 distinct),
    # one repeats a word ten times, one never closes its tag; words 2 2 10 2 -> 4 on average.
    before = batch(1, completions=["a b", "a c", "a d", "a e"])
    after = batch(2, completions=["a b", "a b", "no " * 10, "<answer> 7"])
    found = measure(TOOL, make_run(rollouts=[before, after]), before=1, after=2)
    assert (found["n_before"], found["n_after"]) == (4, 4)
    assert (found["repetition_before"], found["repetition_after"]) == (0, 0.25)
    assert (found["broken_before"], found["broken_after"]) == (0, 0.25)
    assert found["garbage_before"] == found["garbage_after"] == 0
    assert (found["distinct_before"], found["distinct_after"]) == (1, 0.75)
    assert (found["words_before"], found["words_after"]) == (2, 4)
    assert (found["worse_by"], found["distinct_kept"]) == (0.25, 0.75)


def test_without_steps_the_first_rollouts_stand_beside_the_last(simulate: MakeRun) -> None:
    run = simulate(1, steps=7)  # fewer than twice ten steps: the two sides share none
    found = run_tool(TOOL, run, {}, evidence_id="E1")
    assert found.tables[0].title == "rollouts at step 1 and step 7"
    assert found.tables[0].columns[0] == "first: prompt"
    assert found.metrics is not None
    assert (found.metrics["n_before"], found.metrics["n_after"]) == (96, 96)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("repetition", "the same phrase again " * 10),
        ("garbage", "so \ufffd\ufffd\ufffd it"),
        ("broken", "<think> and then"),
    ],
)
def test_a_change_of_the_text_at_a_step(
    simulate: MakeRun, measure: Measure, kind: str, text: str
) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            for i in range(0, 32, 2):
                d.completions[i] = text

    found = measure(TOOL, simulate(1, edit=edit), before=ONSET - 1, after=ONSET)
    assert (found["n_before"], found["n_after"]) == (320, 320)
    assert found["worse_by"] >= 0.4
    assert found[f"{kind}_before"] < 0.1
    assert found[f"{kind}_after"] >= 0.5


def test_one_answer_to_every_sample(simulate: MakeRun, measure: Measure) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            d.completions = [PLAIN] * 32

    found = measure(TOOL, simulate(1, edit=edit), before=ONSET - 1, after=ONSET)
    assert found["distinct_before"] > 0.9
    assert found["distinct_after"] == 0.125
    assert found["distinct_kept"] < 0.14


def test_longer_answers_and_a_dead_verifier_change_no_text(
    simulate: MakeRun, measure: Measure
) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            d.rewards["correct"][:] = 0
            d.completions = [f"I checked it twice and once more {c}" for c in d.completions]

    found = measure(TOOL, simulate(1, edit=edit), before=ONSET - 1, after=ONSET)
    assert found["words_after"] > found["words_before"] + 6
    assert found["worse_by"] <= 0.1
    assert found["distinct_kept"] > 0.9


def test_one_broken_step_among_ten_is_little(simulate: MakeRun, measure: Measure) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step == ONSET:
            d.completions = ["<think>"] * 32

    found = measure(TOOL, simulate(1, edit=edit), before=ONSET - 1, after=ONSET)
    assert found["broken_after"] == 0.1
    assert found["worse_by"] <= 0.1
    assert found["distinct_kept"] > 0.9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no " * 10, True),
        ("one two three four " * 8, True),
        ("!" * 60, True),
        ("ha" * 30, True),
        ("!" * 8, True),
        ("!!!! !!!! !!!! !!!!", True),
        ("So " + "!" * 30, True),
        ("哈" * 8, True),
        ("!!!!", False),
        ("It works!!!", False),
        ("100000000000", False),
        (PLAIN, False),
        ("no " * 5, False),
        ("", False),
        ("1 + 2 = 3 and 4 + 5 = 9 so in all 3 + 9 = 12 of them", False),
        ("yes no yes maybe no yes no or yes but not yes if no", False),
    ],
)
def test_repetition(text: str, expected: bool) -> None:
    assert is_repetitive(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so \ufffd\ufffd then", True),
        ("\x00\x01\x02", True),
        ("the ответ is 答え", True),
        (PLAIN, False),
        ("line\n\ttab", False),
        ("", False),
        ("naïve café", False),
        ("答案是四十二, answer 42", False),
        ("Пусть x = 3", False),
        ("2 ≤ π < 4, ∑ ∞ → ∂", False),
        ("これは漢字とカタカナの文です", False),
        ("Let α be in ℝ", False),
    ],
)
def test_garbage(text: str, expected: bool) -> None:
    assert is_garbage(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        (" \n", True),
        ("<answer> 7", True),
        ("{'a': 1", True),
        ("```python\nx = 1", True),
        ("<think> then <think> again </think>", True),
        ("<b><i>x</i>", False),
        (PLAIN, False),
        ("a < b and c > d", False),
        ("```\nx\n```", False),
        ("f(x) = {x}", False),
        ("vector<int> x;", False),
        ('[{"city": "Rome"}, {"city"', True),
        ("The values are [1, 2, 3", True),
        ("The values are [1, 2, 3]", False),
        ("x lies in [0, 1) or in (2, 3]", False),
        (r"\[ x = 1 \]", False),
        ("First we take the sum of the", True),
        ("First we take three of them, and then,", True),
        ("首先我们计算，", True),
        ("It is what we think of", True),
        ("so the answer is seven", False),
        ("the right option is A", False),
        ("A", False),
    ],
)
def test_broken(text: str, expected: bool) -> None:
    assert is_broken(text) is expected


def test_without_steps_the_two_ends_are_read(simulate: MakeRun, measure: Measure) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step > 50:
            d.completions = ["<think>"] * 32

    found = measure(TOOL, simulate(1, edit=edit))
    assert (found["n_before"], found["n_after"]) == (320, 320)
    assert (found["broken_before"], found["broken_after"]) == (0, 1)


def test_rows_of_both_sides_are_shown(simulate: MakeRun, evidence: Callable[..., Evidence]) -> None:
    found = evidence(TOOL, simulate(1), before=30, after=31, rows=3)
    assert found.window is not None
    assert (found.window.first, found.window.last) == (21, 40)
    assert found.args == {"before": 30, "after": 31, "rows": 3}
    assert len(found.tables[0].rows) == 3


def test_without_data(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    assert "two steps" in missing(TOOL, make_run())
    assert "two steps" in missing(TOOL, make_run(rollouts=[batch(completions=["a"])]))
    same = [batch(1, completions=["a"]), batch(2, completions=["a"], repeats_step=1)]
    assert "repeat" in missing(TOOL, make_run(rollouts=same), before=1, after=2)


@settings(max_examples=4, derandomize=True)
@given(order=st.permutations(range(4)), by=st.integers(0, 1000))
def test_order_of_groups_and_step_numbers_do_not_matter(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace, order: list[int], by: int
) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step >= 11:
            d.completions[:8] = [PLAIN] * 8

    run = simulate(1, steps=20, edit=edit)
    before = measure(TOOL, run, before=10, after=11)
    moved = changed.rebatch(run, lambda b: changed.reorder_groups(b, order))
    after = measure(TOOL, changed.shift_steps(moved, by), before=10 + by, after=11 + by)
    assert after == before


@settings(max_examples=40, derandomize=True)
@given(st.text(max_size=200))
def test_any_text_has_a_kind(text: str) -> None:
    for kind in (is_repetitive, is_garbage, is_broken):
        assert kind(text) in (True, False)


@pytest.mark.parametrize("before", [500, 60, 0])
def test_a_step_outside_the_rollouts_parts_nothing(
    simulate: MakeRun, missing: Callable[..., str], before: int
) -> None:
    assert "hold steps 1 to 60" in missing(TOOL, simulate(1), before=before)


def test_settings_that_fit_no_run(simulate: MakeRun, missing: Callable[..., str]) -> None:
    run = simulate(1)
    assert "hold steps 1 to 60" in missing(TOOL, run, after=61)
    with pytest.raises(ToolInputError, match="number of rows"):
        run_tool(TOOL, run, {"rows": -1}, evidence_id="e1")
