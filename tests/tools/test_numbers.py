"""One way to write a number in a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.tools.numbers import is_step, number, percent


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (7, "7"),
        (2640, "2,640"),
        (-12345, "-12,345"),
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (0.99937, "0.9994"),
        (0.23, "0.23"),
        (1 / 3, "0.3333"),
        (13.5, "13.5"),
        (1234.5678, "1,235"),
        (0.0001, "0.0001"),
        (1.25e-07, "1.25e-7"),
        (-3e-05, "-3e-5"),
        (6.02e23, "6.02e23"),
        ("text", "text"),
    ],
)
def test_number_has_one_form(value: bool | int | float | str | None, shown: str) -> None:
    assert number(value) == shown


def test_step_is_a_name_and_takes_no_separator() -> None:
    assert number(41000, step=True) == "41000"
    assert number(41000.0, step=True) == "41000"


@given(st.floats(-1e300, 1e300))
def test_number_is_the_value_to_four_digits(value: float) -> None:
    shown = float(number(value).replace(",", ""))
    assert shown == pytest.approx(value, rel=5.1e-4, abs=5e-324)


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (None, "–"),
        (0, "0 %"),
        (1, "100 %"),
        (0.77, "77 %"),
        (0.0035, "0.4 %"),
        (0.00004, "0.004 %"),
        (1e-9, "below 0.001 %"),
        (0.9996, "99.96 %"),
        (1.43, "143 %"),
        (123.4, "12,340 %"),
        (-0.003, "-0.3 %"),
    ],
)
def test_percent(share: float | None, shown: str) -> None:
    assert percent(share) == shown


@given(st.floats(0, 1))
def test_no_part_reads_as_none_or_all(share: float) -> None:
    shown = percent(share)
    assert (shown == "0 %") is (share == 0)
    assert (shown == "100 %") is (share == 1 or shown == "100 %" and 1 - share < 1e-6)
    assert "e" not in shown.removeprefix("below")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("step", True),
        ("first_bad_step", True),
        ("first step", True),
        ("noticed_step", True),
        ("n_steps", False),
        ("step_time", False),
        ("share", False),
    ],
)
def test_is_step(name: str, answer: bool) -> None:
    assert is_step(name) is answer
