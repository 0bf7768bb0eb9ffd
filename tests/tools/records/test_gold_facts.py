"""Gold answers against each other and against arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from firstbad.tools.records.gold_facts import _is, _value
from firstbad.tools.run import RolloutBatch, Run

TOOL = "check_gold_facts"
MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Groups = Sequence[tuple[str, str, str]]
"""Prompt, gold answer and what all samples say, group by group."""


def run_of(make_run: MakeRun, batch: MakeBatch, *steps: Groups) -> Run:
    rows = []
    for step, groups in enumerate(steps, 1):
        spread = [g for g in groups for _ in range(4)]
        rows.append(
            batch(
                step,
                rewards={"correct": [float(gold == said) for _, gold, said in spread]},
                prompts=[prompt for prompt, *_ in spread],
                completions=[f"so it is {said}" for *_, said in spread],
                gold=[gold for _, gold, _ in spread],
                size=4,
            )
        )
    return make_run(rollouts=rows)


@pytest.mark.parametrize(
    ("prompt", "value"),
    [
        ("What is 12 + 7?", 19),
        ("3 * 4 - 2 =", 10),
        ("Compute 7 / 2", 3.5),
        ("Calculate 2 x 3 × 4.", 24),
        ("5 - -3 =", 8),
        ("Tom has 3 apples and 4 pears. How many?", None),
        ("What is 12 + 7 modulo 5?", None),  # another number beside it
        ("Call 555-1234 today", None),  # asks for nothing
        ("1 / 0 =", None),
        ("What is 007 + 1?", None),
        ("x + 2 = 5?", None),
    ],
)
def test_prompts_that_ask_for_one_sum(prompt: str, value: float | None) -> None:
    found = _value(prompt)
    assert (None if found is None else float(found)) == value


@pytest.mark.parametrize(
    ("gold", "same"),
    [("3.5", True), ("3.50", True), ("7/2", True), ("three and a half", True), ("3", False)],
)
def test_another_way_of_writing_a_number_is_not_wrong(gold: str, same: bool) -> None:
    value = _value("7 / 2 =")
    assert value is not None
    assert _is(gold, value) is same


def test_sums_with_another_gold_answer(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    def group(n: int, gold: int) -> tuple[str, str, str]:
        return f"What is {n} + 1?", str(gold), str(n + 1)

    sound = [group(n, n + 1) for n in range(8)]
    found = measure(TOOL, run_of(make_run, batch, *[sound] * 6, [*sound, group(9, 4)]))
    assert (found["n_sums"], found["sums_wrong"]) == (9, 1)
    assert (found["last_good_step"], found["first_bad_step"]) == (6, 7)
    clean = measure(TOOL, run_of(make_run, batch, sound, sound))
    assert (clean["sums_wrong"], clean["first_bad_step"]) == (0, None)


@pytest.mark.parametrize(
    ("golds", "said", "conflicts"),
    [
        (("8", "3"), ("8", "8"), 1),  # the samples hold to one of the two
        (("8", "3"), ("8", "3"), 0),  # ... follow both: something tells them apart
        (("8", "8.0"), ("8", "8"), 0),
        (("8", "8"), ("5", "5"), 0),
    ],
)
def test_a_prompt_with_two_gold_answers(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    golds: tuple[str, str],
    said: tuple[str, str],
    conflicts: int,
) -> None:
    dogs = ("How many dogs?", "2", "2")
    steps = [[("How many cats?", golds[i], said[i]), dogs] for i in range(2)]
    found = measure(TOOL, run_of(make_run, batch, *steps))
    assert (found["n_twice"], found["n_conflicting"]) == (2, conflicts)


@pytest.mark.parametrize(
    ("prompt", "gold", "said"),
    [
        ("What is the remainder of 17 / 5?", "2", "2"),
        ("Rounded to a whole number, what is 7 / 2?", "4", "4"),
        ("What is |3 - 8|?", "5", "5"),
        ("What is 2 - 7 in words and signs?", "-5", "5"),  # a policy that errs is no witness
    ],
)
def test_what_samples_do_not_read_as_the_sum_is_no_wrong_gold(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, prompt: str, gold: str, said: str
) -> None:
    found = measure(TOOL, run_of(make_run, batch, *[[(prompt, gold, said)]] * 3))
    assert found["sums_wrong"] == 0


@pytest.mark.parametrize(("one", "other"), [("1/2", "0.5"), ("12.5%", "0.125"), ("3.0", "3")])
def test_two_forms_of_a_gold_answer_are_one(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, one: str, other: str
) -> None:
    steps = [[("Half of it?", one, other)], [("Half of it?", other, one)]] * 3
    assert measure(TOOL, run_of(make_run, batch, *steps))["n_conflicting"] == 0


def test_an_answer_that_is_paid_is_one_of_several(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """Each row states one of the accepted answers; the reward takes any of them."""

    def rows(step: int, gold: str, paid: float) -> RolloutBatch:
        return batch(
            step,
            rewards={"correct": [paid] * 4 + [0.0] * 4},
            prompts=["Name a prime"] * 4 + ["Name a square"] * 4,
            completions=["so it is 7"] * 4 + ["so it is 5"] * 4,
            gold=[gold] * 4 + ["9"] * 4,
            size=4,
        )

    for paid, conflicts in ((1.0, 0), (0.0, 1)):
        run = make_run(rollouts=[rows(1, "7", 1.0), rows(2, "11", paid), rows(3, "7", 1.0)])
        assert measure(TOOL, run)["n_conflicting"] == conflicts


def test_numbers_of_any_length_are_held_together() -> None:
    value = _value(f"What is {'9' * 180} * {'9' * 180}?")
    assert value is not None
    assert not _is("7", value)
    assert _is(str(value), value)
