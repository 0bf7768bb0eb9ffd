"""Numbers in one form, and text of others made harmless."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from firstbad.agent.memo.text import (
    block,
    brief,
    code,
    column,
    cut,
    markdown,
    operands,
    rich,
    tool_command,
)


def test_operands_of_a_broken_bound_never_look_equal() -> None:
    assert operands(0.99996, 1.0) == ("0.99996", "1")
    assert operands(0.77, 0.95) == ("0.77", "0.95")
    assert operands(3.0, 3.0) == ("3", "3")
    assert operands(None, 3.0) == ("–", "3")
    assert operands(41000, 41001.0, step=True) == ("41000", "41001")


def test_column_shares_its_decimals() -> None:
    assert column([0.9375, 0.75, 0.0]) == ["0.9375", "0.7500", "0.0000"]
    assert column([1.0, 2.0]) == ["1", "2"]
    assert column([10.5, 9.25]) == ["10.50", "9.25"]
    assert column([1.0, 1e-6]) == ["1", "1e-6"]  # one would vanish: each for itself
    assert column([0.0, -0.0]) == ["0", "0"]
    assert column([]) == []


def test_brief_ends_at_a_clause_and_says_that_it_goes_on() -> None:
    assert brief("one two three; four five six", 20) == "one two three …"
    assert brief("short", 16) == "short"
    assert len(brief("x" * 100, 16)) == 17
    assert brief("all of 1234 steps and more", 13) == "all of 1234 …"
    assert brief("all of 1234 steps", 10) == "all of …"
    assert brief("a whole check of (`numerics.finite`) fails", 26) == "a whole check of …"
    assert brief("`a` and `b` are both named here", 14) == "`a` and `b` …"


def test_cut_says_how_much_is_left_out() -> None:
    assert cut("abc", 5).left_out == ""
    assert cut("a" * 5000, 1000).left_out == "4,000 more characters"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("reward_mean is 3 < 5 * 2", "reward_mean is 3 < 5 \\* 2"),
        ("code `a_b` stays", "code `a_b` stays"),
        ("0.5 and -0.5", "0.5 and -0.5"),
        ("# no heading", "\\# no heading"),
        ("1. no list", "1\\. no list"),
        ("- no list", "\\- no list"),
        ("a|b", "a\\|b"),
        ("<b>bold</b>", "`<b>bold</b>`"),
        ("see https://x.example/a", "see `https://x.example/a`"),
        ("_em_ a_b", "\\_em\\_ a_b"),
        ("two\nlines", "two lines"),
        ("&lt;", "&amp;lt;"),
    ],
)
def test_markdown_escapes_what_would_be_markup(text: str, shown: str) -> None:
    assert markdown(text) == shown


def kinds(text: str) -> set[str]:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    found: set[str] = set()
    for token in parser.parse(text):
        found.add(token.type)
        found |= {child.type for child in token.children or ()}
    return found


markup = st.text(alphabet=st.sampled_from(list("ab1 `|*_~[]()<>!#&;\\-+=.:/@\n\t\x1b\u202e")))


@given(markup)
def test_any_text_is_one_paragraph_of_text_and_code(text: str) -> None:
    assert kinds(markdown(text)) <= {
        "paragraph_open",
        "paragraph_close",
        "inline",
        "text",
        "code_inline",
    }


@given(markup, markup)
def test_any_text_fills_exactly_its_cells(first: str, second: str) -> None:
    table = f"| x | y |\n|---|---|\n| {markdown(first)} | {markdown(second)} |\n"
    tokens = MarkdownIt("commonmark").enable("table").parse(table)
    assert [t.type for t in tokens].count("td_open") == 2
    assert tokens[-1].type == "table_close"


@given(markup)
def test_any_text_in_a_block_stays_in_it(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(block(text))
    assert [t.type for t in tokens] == ["fence"]


@given(markup)
def test_any_text_in_code_is_code_or_escaped(text: str) -> None:
    assert kinds(code(text)) <= {
        "paragraph_open",
        "paragraph_close",
        "inline",
        "text",
        "code_inline",
    }


@given(markup)
def test_rich_makes_code_and_links_to_known_evidence_only(text: str) -> None:
    import re

    shown = str(rich(text + " E1 E2", {"E1": None}))
    assert set(re.findall(r"<[^>]*>", shown)) <= {"<code>", "</code>", '<a href="#E1">', "</a>"}
    assert '<a href="#E1">E1</a>' in shown or "`" in text


def test_command_is_quoted_for_a_shell() -> None:
    shown = tool_command("t", "trl:/a b/$(x)", {"pattern": "'; rm -rf /", "on": True, "none": None})
    assert shlex.split(shown) == [
        "firstbad",
        "tools",
        "run",
        "t",
        "trl:/a b/$(x)",
        "--set",
        "pattern='; rm -rf /",
        "--set",
        "on=true",
    ]


def test_punctuation_around_an_address_stays_outside_of_its_code() -> None:
    link = "https://github.com/a/b/issues/1"
    assert markdown(f"on record (see {link}).") == f"on record (see `{link}`)."
