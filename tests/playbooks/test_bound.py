"""Bounds: one operator, one number, three answers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from firstbad.playbooks.bound import PATTERN, Bound


class Holder(BaseModel):
    bound: Bound


@pytest.mark.parametrize(
    ("text", "below", "equal", "above"),
    [
        ("< 3", True, False, False),
        ("<= 3", True, True, False),
        ("> 3", False, False, True),
        (">= 3", False, True, True),
        ("== 3", False, True, False),
        ("!= 3", True, False, True),
    ],
)
def test_every_operator(text: str, below: bool, equal: bool, above: bool) -> None:
    bound = Bound.parse(text)
    assert bound.holds(2.9) is below
    assert bound.holds(3) is equal
    assert bound.holds(3.1) is above
    assert bound.holds(None) is None, "what was not observed neither holds nor breaks"


@pytest.mark.parametrize(
    ("text", "op", "limit"),
    [
        ("> 3", ">", 3),
        (">3", ">", 3),
        ("  >=   -0.5  ", ">=", -0.5),
        ("< .25", "<", 0.25),
        ("== 3.", "==", 3),
        ("!= 1e-4", "!=", 1e-4),
        ("<= 2E+3", "<=", 2000),
    ],
)
def test_forms_that_are_read(text: str, op: str, limit: float) -> None:
    assert Bound.parse(text) == Bound(op, limit)


@pytest.mark.parametrize(
    "text",
    [
        "1 < x < 3",
        "> 1 and < 3",
        "x > 3",
        "3",
        "> three",
        "> 0x10",
        "> 1_000",
        "> 3 %",
        "=> 3",
        "= 3",
        "> + 3",
        "> nan",
        "> inf",
        "> -inf",
        "> ",
        "",
        "not > 3",
        "> a.b",
        "> 3; import os",
        3,
        None,
        True,
        ["> 3"],
    ],
)
def test_everything_else_is_refused_with_the_form_that_is_wanted(text: object) -> None:
    with pytest.raises(ValueError, match=r"an operator and a number such as `> 3`, found"):
        Bound.parse(text)
    with pytest.raises(ValidationError, match="an operator and a number"):
        Holder.model_validate({"bound": text})


def test_booleans_are_compared_as_0_and_1() -> None:
    assert Bound.parse("== 1").holds(True) is True
    assert Bound.parse("== 1").holds(False) is False
    assert Bound.parse("== 0").holds(False) is True


def test_a_bound_in_a_model_is_text_outside_and_has_a_pattern() -> None:
    holder = Holder.model_validate({"bound": ">= 2"})
    assert holder.bound == Bound(">=", 2)
    assert Holder(bound=Bound("<", 1)).bound == Bound("<", 1)
    assert holder.model_dump_json() == '{"bound":">= 2"}'
    assert Holder.model_validate_json(holder.model_dump_json()) == holder
    schema = Holder.model_json_schema()["properties"]["bound"]
    assert schema == {"pattern": PATTERN, "title": "Bound", "type": "string"} or schema == {
        "pattern": PATTERN,
        "type": "string",
    }
    assert re.match(PATTERN, "> 3")


@settings(max_examples=50, derandomize=True)
@given(
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    st.integers(-999_999, 999_999),
    st.integers(-999_999, 999_999),
)
def test_a_bound_and_its_opposite_are_never_of_one_mind(op: str, limit: int, value: int) -> None:
    opposite = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}[op]
    bound = Bound.parse(f"{op} {limit}")
    assert bound.holds(value) is not Bound.parse(f"{opposite} {limit}").holds(value)
    assert Bound.parse(str(bound)) == bound


@pytest.mark.parametrize("text", [">= 1234567", "> 0.12345678"])
def test_no_digit_is_lost_in_the_text_form(text: str) -> None:
    assert Bound.parse(str(Bound.parse(text))) == Bound.parse(text)


def test_a_limit_is_finite() -> None:
    with pytest.raises(ValueError, match="number"):
        Bound.parse("> 1e999")
