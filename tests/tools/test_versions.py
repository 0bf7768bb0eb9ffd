"""Versions against ranges, with what development and candidate versions leave open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.tools.versions import Known, is_one_of, parsed, reaches


@pytest.mark.parametrize(
    ("version", "bound", "expected"),
    [
        ("1.9.1", "1.9.1", True),
        ("1.9.0", "1.9.1", False),
        ("1.10.0", "1.9.1", True),  # numbers, not texts
        ("1.9", "1.9.0", True),
        ("0.27", "0.27.0", True),
        ("1.9.1.dev0", "1.9.1", None),
        ("1.9.1rc1", "1.9.1", None),
        ("1.9.0.dev0", "1.9.1", False),
        ("1.10.0.dev0", "1.9.1", True),
        ("1.10.0.dev0", "1.10", None),
        ("1.9.1.post1", "1.9.1", True),
        ("2.4.0+cu121", "2.4", True),
        ("main", "1.9.1", None),
        ("", "1.9.1", None),
        (None, "1.9.1", None),
    ],
)
def test_reaching_a_version(version: str | None, bound: str, expected: bool | None) -> None:
    assert reaches(Known(version), bound) is expected


@pytest.mark.parametrize(
    ("at_least", "bound", "expected"),
    [("1.8", "1.6", True), ("1.8", "1.8", True), ("1.8", "1.9.1", None)],
)
def test_what_settings_imply_is_a_least_and_no_most(
    at_least: str, bound: str, expected: bool | None
) -> None:
    assert reaches(Known(None, at_least), bound) is expected
    assert reaches(Known("0.1", at_least), bound) is False, "what is stated counts"


@pytest.mark.parametrize(
    ("version", "reported", "expected"),
    [
        ("0.15.2", ("0.15",), True),
        ("0.15", ("0.15.2",), None),
        ("0.16.0", ("0.15",), None),
        ("0.150.0", ("0.15",), None),
        ("0.15.0rc1", ("0.15",), None),
        ("1.9.0", ("0.15", "1.9.0"), True),
        (None, ("0.15",), None),
    ],
)
def test_a_report_speaks_for_its_own_versions(
    version: str | None, reported: tuple[str, ...], expected: bool | None
) -> None:
    assert is_one_of(Known(version), reported) is expected


releases = st.tuples(*[st.integers(0, 30)] * 3)


@given(releases, releases)
def test_released_versions_are_ordered_as_their_numbers(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    text, bound = (".".join(map(str, r)) for r in (one, other))
    assert reaches(Known(text), bound) is (one >= other)


def test_what_is_no_version() -> None:
    assert parsed("1.16.0") is not None
    assert parsed("1.16.x") is None
    assert parsed(None) is None
