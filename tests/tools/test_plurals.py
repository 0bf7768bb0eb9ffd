"""One of a thing is told as one."""

from __future__ import annotations

import pytest

from firstbad.tools.plurals import of_one
from plurals_in import false_plurals


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 steps with both", "1 step with both"),
        ("in 1 checkpoints", "in 1 checkpoint"),
        ("(1 captured steps)", "(1 captured step)"),
        ("1 weight deliveries were late", "1 weight delivery was late"),
        ("1 batches have it; 1 groups are wrong", "1 batch has it; 1 group is wrong"),
        ("1 micro-batches, 1 log-probs", "1 micro-batch, 1 log-prob"),
    ],
)
def test_one_is_no_plural(text: str, told: str) -> None:
    assert false_plurals(text)
    assert of_one(text) == told
    assert not false_plurals(told)


@pytest.mark.parametrize(
    "text",
    [
        "11 steps, 0.1 steps, 2,001 steps, 1.5 groups",
        "from step 1 rewards fall",
        "layer 1 checks what it must",
        "a ratio of 1 explains 3 of 5 steps",
        "1 times the usual one",
        "1 of 5 steps",
        "`1 steps` in a text of the run",
        "1 process has 1 step",
        "2 steps are 1 less than 3",
    ],
)
def test_what_is_no_count_of_one_stays(text: str) -> None:
    assert of_one(text) == text


def test_a_memo_is_looked_through_without_what_the_run_says() -> None:
    memo = "All 1 steps are good.\n```text\n1 apples\n```\n| 1 pears | x |\n"
    assert false_plurals(memo) == ["1 steps"]
