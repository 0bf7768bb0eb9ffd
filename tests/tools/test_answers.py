"""Plain extractors and the plain normaliser."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.answers import EXTRACTORS, LONGEST, agree, extract, loose, normalise

TAGGED = "<answer>1</answer> no, <ANSWER> 2 </ANSWER>"


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("last <answer> tag", TAGGED, "2"),
        ("last <answer> tag", "<answer>two\nlines</answer>", "two lines"),
        ("last <answer> tag", "<answer>never closed", None),
        ("first <answer> tag", TAGGED, "1"),
        ("first <answer> tag", "no tag", None),
        ("strict <think> <answer> form", "<think>a</think>\n<answer> 7 </answer>\n", "7"),
        ("strict <think> <answer> form", "well: <think>a</think><answer>7</answer>", None),
        ("strict <think> <answer> form", "<think>a</think><answer>7</answer> done", None),
        ("strict <think> <answer> form", "<answer>7</answer>", None),
        ("strict <think> <answer> form", "<think>a</think>" + TAGGED, None),
        ("last \\boxed{}", r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("last \\boxed{}", r"\boxed{\frac{1}{2}", None),
        ("last \\boxed{}", "nothing", None),
        ("after ####", "work\n#### 12\n", "12"),
        ("after ####", "#### 1\n#### 2", "2"),
        ("after ####", "#3", None),
        ("after `answer is`", "So the answer is 12.", "12"),
        ("after `answer is`", "Final answer: 12", "12"),
        ("after `answer is`", "answer = 12", "12"),
        ("after `answer is`", "The answer is: 12", "12"),
        ("after `answer is`", "the result is 12", None),
        ("last line", "first\n  last \n\n", "last"),
        ("last line", " \n ", None),
        ("last number", "from 3 to -1,234.50 euros", "-1234.5"),
        ("last number", "none at all", None),
        ("whole text", "  Blue  Whale. ", "blue whale"),
    ],
)
def test_extractor(name: str, text: str, answer: str | None) -> None:
    assert extract(name, text) == answer


def test_every_extractor_has_a_case_above() -> None:
    assert set(EXTRACTORS) == {
        "last <answer> tag",
        "first <answer> tag",
        "strict <think> <answer> form",
        "last \\boxed{}",
        "after ####",
        "after `answer is`",
        "last line",
        "last number",
        "whole text",
    }


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (" A  b\n C ", "a b c"),
        ("$12$", "12"),
        ('"yes"', "yes"),
        ("`x`", "x"),
        ("12.", "12"),
        ("1,234,567", "1234567"),
        ("3.500", "3.5"),
        ("3.0", "3"),
        ("-0.50", "-0.5"),
        ("100", "100"),
        ("-0.0", "0"),
        (r"\text{North}", "north"),
        (r"$\mathrm{cm}$", "cm"),
        ("1/2", "1/2"),
        ("v1.10", "v1.10"),
        ("", ""),
    ],
)
def test_normaliser(text: str, plain: str) -> None:
    assert normalise(text) == plain


@pytest.mark.parametrize(
    ("answer", "gold", "strictly", "loosely"),
    [
        ("12", " 12. ", True, True),
        ("(1, 2)", "1,2", False, True),
        ("[a b]", "A  B", False, True),
        ("13", "12", False, False),
        (None, "12", False, False),
        ("!", "?", False, False),  # nothing is left of either
        ("1.5", "15", False, False),
        ("-5", "5", False, False),
    ],
)
def test_two_ways_to_compare(answer: str | None, gold: str, strictly: bool, loosely: bool) -> None:
    assert agree(answer, gold) is strictly
    assert agree(answer, gold, "loose") is loosely


@pytest.mark.parametrize(
    ("text", "plain"), [("(1, 2)", "12"), ("a-b c", "abc"), ("-1.50", "-1.50"), ("x=-3", "x-3")]
)
def test_what_is_left_of_an_answer_without_its_form(text: str, plain: str) -> None:
    assert loose(text) == plain


def test_only_the_end_of_a_long_completion_is_looked_at() -> None:
    text = "<answer>1</answer>" + "x" * LONGEST
    assert extract("last <answer> tag", text) is None
    assert extract("last <answer> tag", "x" * LONGEST + "<answer>1</answer>") == "1"


@settings(max_examples=50, derandomize=True)
@given(st.integers(-(10**9), 10**9), st.sampled_from(["", ".0", ".00"]), st.booleans())
def test_numbers_have_one_plain_form(number: int, tail: str, commas: bool) -> None:
    written = f"{number:,}{tail}" if commas else f"{number}{tail}"
    assert normalise(written) == str(number)
    assert extract("last <answer> tag", f"<answer> {written} </answer>") == str(number)
    assert extract("last number", f"it is {written}") == str(number)


@settings(max_examples=50, derandomize=True)
@given(st.text(max_size=80))
def test_any_text_is_survived_and_normalising_twice_changes_nothing(text: str) -> None:
    for name in EXTRACTORS:
        extract(name, text)
    spaced = "  " + text.replace(" ", "   ") + "\n"
    assert normalise(spaced) == normalise(text)
