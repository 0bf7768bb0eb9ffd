"""Plain output for a terminal of any width: wrapping, columns, colour only where it is wanted."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

from firstbad.agent.plain import bound

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
NARROW = 28
"""A last column with less room than this goes onto lines of its own."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person is looking at it."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def page(text: str) -> None:
    """Print a text; one longer than the screen goes through a pager, as in git or man."""
    if not is_terminal(sys.stdout) or text.count("\n") < shutil.get_terminal_size().lines:
        print(text)
        return
    import pydoc

    os.environ.setdefault("LESS", "FRX")  # leave what was shown on the screen, as git does
    pydoc.pager(text)


def paint(text: str, *styles: str) -> str:
    """Text in colour, on a terminal that may have it; no empty text is painted."""
    if not (text and styles and is_terminal(sys.stdout)) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{';'.join(_CODES[s] for s in styles)}m{text}\x1b[0m"


def width() -> int:
    """Columns to fill: those of the terminal, 100 where there is none, never above 120."""
    if not is_terminal(sys.stdout) and "COLUMNS" not in os.environ:
        return 100
    return max(20, min(120, shutil.get_terminal_size().columns))


def cells(text: str) -> int:
    """Columns that a text takes; Chinese characters take two."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def wrap(text: str, room: int) -> list[str]:
    """Lines of at most `room` columns; a word longer than that is cut."""
    lines: list[str] = []
    line = ""
    for word in re.split(r"[^\S\N{NO-BREAK SPACE}]+", bound(text).strip()):
        for piece in _pieces(word, room):
            longer = f"{line} {piece}" if line else piece
            if cells(longer) <= room:
                line = longer
            else:
                lines.append(line)
                line = piece
    whole = [*lines, line] if line or not lines else lines
    return [part.replace("\N{NO-BREAK SPACE}", " ") for part in whole]


def _pieces(word: str, room: int) -> Iterable[str]:
    piece, used = "", 0
    for char in word:
        if used + cells(char) > room and piece:
            yield piece
            piece, used = "", 0
        piece += char
        used += cells(char)
    yield piece


def table(rows: Sequence[Sequence[str]], styles: Sequence[Sequence[str]] = ()) -> list[str]:
    """Rows in columns; the last one is wrapped.

    Args:
        rows: equally many texts each.
        styles: for each row the style of its second column, if any.
    """
    if not rows:
        return []
    widths = [max(cells(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    indent = sum(widths) + 2 * len(widths)
    own_lines = width() - indent < NARROW
    room = width() - (4 if own_lines else indent)
    lines = []
    for number, row in enumerate(rows):
        style = styles[number] if number < len(styles) else ()
        heads = [text + " " * (size - cells(text)) for text, size in zip(row, widths, strict=False)]
        if len(heads) > 1:
            heads[1] = paint(heads[1], *style)
        head = "  ".join(heads)
        tail = wrap(row[-1], room)
        if own_lines:
            lines += [head.rstrip(), *(" " * 4 + t for t in tail if t)]
        else:
            lines.append(f"{head}  {tail[0]}".rstrip() if widths else tail[0])
            lines += [" " * indent + t for t in tail[1:]]
    return lines
