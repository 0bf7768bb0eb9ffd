from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.agent import console
from firstbad.agent.console import cells, page, paint, table, wrap
from firstbad.agent.screen import _short


@given(st.text(alphabet="ab 奖励\u0301", max_size=60), st.integers(2, 20))
def test_wrapped_lines_fit_and_lose_nothing(text: str, room: int) -> None:
    lines = wrap(text, room)
    assert all(cells(line) <= room for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(text.split())


@pytest.mark.parametrize("columns", ["30", "60", "100", "200"])
def test_tables_fit_terminals_of_any_width(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    rows = [
        ("0.5", "inconclusive", "records", "direct", "word " * 40),
        ("1", "pass", "奖励", "", "x"),
    ]
    assert all(cells(line) <= max(int(columns), 40) for line in table(rows))
    assert "x" in table(rows)[-1]


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert paint("x", "red") == "x"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert paint("x", "red", "bold") == "\x1b[31;1mx\x1b[0m"
    assert paint("", "red") == ""
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", "red") == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not console.is_terminal(sys.stdout)


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    assert wrap("it is 77 % of all", 9) == ["it is", "77 % of", "all"]
    assert wrap("up to 0.1 nats", 9) == ["up to", "0.1 nats"]


@pytest.mark.parametrize(("lines", "paged"), [(400, True), (3, False)])
def test_a_text_longer_than_the_screen_goes_through_the_pager(lines: int, paged: bool) -> None:
    main, terminal = pty.openpty()
    code = f"from firstbad.agent.console import page; page('\\n'.join(['word'] * {lines}))"
    env = {**os.environ, "PAGER": "tr a-z A-Z", "TERM": "xterm", "LINES": "24"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("MANPAGER", None)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=terminal, stdout=terminal, stderr=terminal, env=env
    ) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # Linux ends a terminal that nobody holds so
            while piece := os.read(main, 4096):
                shown += piece
    os.close(main)
    assert process.returncode == 0, shown
    assert shown.split() == [b"WORD" if paged else b"word"] * lines


def test_a_text_in_a_pipe_is_never_paged(capsys: pytest.CaptureFixture[str]) -> None:
    page("word\n" * 400)
    assert capsys.readouterr().out == "word\n" * 400 + "\n"


def test_a_line_of_the_walk_ends_between_words() -> None:
    text = "all of 1234 steps, first and last"
    assert [_short(text, room) for room in (40, 31, 16)] == [
        text,
        "all of 1234 steps, first and …",
        "all of 1234 …",
    ]
    assert cells(_short("一二三四 五六七八 九十", 14)) <= 14
