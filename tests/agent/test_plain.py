from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.agent.plain import plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("reward fell", "reward fell"),
        ("第66步奖励突然掉到0", "第66步奖励突然掉到0"),
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x9b31m", "\\u009b31m"),
        ("hidden\rshown", "hidden␍shown"),
        ("gpj\u202e.exe", "gpj\\u202e.exe"),
        ("a\u200bb", "a\\u200bb"),
        ("del\x7f", "del␡"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
        ("two\nlines\tkept", "two\nlines\tkept"),
    ],
)
def test_what_steers_a_terminal_is_made_visible(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_one_line_takes_line_breaks_away() -> None:
    assert plain("a\r\n\tb\x1b", one_line=True) == "a b␛"


@given(st.text())
def test_nothing_harmful_is_left_and_twice_changes_nothing(text: str) -> None:
    shown = plain(text)
    assert not any(ord(c) < 32 and c not in "\n\t" or 0x7F <= ord(c) < 0xA0 for c in shown)
    assert plain(shown) == shown
    shown.encode("utf-8")
