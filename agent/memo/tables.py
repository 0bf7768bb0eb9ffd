"""Tables of evidence as the memo shows them: bounded rows, numbers in one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firstbad.agent.memo.text import brief, column
from firstbad.tools.evidence import Scalar, Table
from firstbad.tools.numbers import is_step, number

CELL = 160
"""Longest text of a cell."""


@dataclass(frozen=True)
class Cell:
    """One shown value."""

    text: str
    is_number: bool

    @property
    def is_long(self) -> bool:
        """Whether the text may be broken anywhere."""
        return len(self.text) > 24


@dataclass(frozen=True)
class Grid:
    """A table ready to be written."""

    title: str
    columns: tuple[Cell, ...]
    """Headings; `is_number` says how the column is aligned."""
    rows: tuple[tuple[Cell, ...], ...]
    marked: tuple[bool, ...]
    """Which rows lie at or after the first bad step."""
    left_out: str = ""
    """What is not shown, in words; empty when all is."""


def grid(
    table: Table, first_bad: int | None = None, *, is_bad: bool = True, most: int = 10
) -> Grid:
    """Up to `most` rows of a table; of a per-step table those around the first bad step.

    Rows from that step on are marked when `is_bad`.
    """
    per_step = bool(table.columns) and is_step(table.columns[0])
    chosen = _around(table.rows, first_bad, most) if per_step else range(min(len(table.rows), most))
    rows = [table.rows[i] for i in chosen]
    columns = [
        _column([row[i] for row in rows], is_step(name)) for i, name in enumerate(table.columns)
    ]
    return Grid(
        title=table.title,
        columns=tuple(
            Cell(brief(name, CELL), bool(cells) and all(c.is_number for c in cells))
            for name, cells in zip(table.columns, columns, strict=True)
        ),
        rows=tuple(zip(*columns, strict=True)),
        marked=tuple(is_bad and per_step and _is_bad(row[0], first_bad) for row in rows),
        left_out=_left_out(len(rows), len(table.rows), table.cut_rows),
    )


def _column(values: Sequence[Scalar], step: bool) -> list[Cell]:
    floats = [v for v in values if isinstance(v, float)]
    written = dict(zip(floats, column(floats), strict=True)) if not step else {}
    return [
        Cell(brief(value, CELL), False)
        if isinstance(value, str)
        else Cell(
            written[value]
            if isinstance(value, float) and value in written
            else number(value, step=step),
            True,
        )
        for value in values
    ]


def _around(rows: Sequence[Sequence[Scalar]], first_bad: int | None, most: int) -> range:
    if len(rows) <= most:
        return range(len(rows))
    at = next((i for i, row in enumerate(rows) if _is_bad(row[0], first_bad)), None)
    if at is None:
        return range(most)
    start = min(max(at - most // 3, 0), len(rows) - most)
    return range(start, start + most)


def _is_bad(step: Scalar, first_bad: int | None) -> bool:
    return first_bad is not None and isinstance(step, (int, float)) and step >= first_bad


def _left_out(shown: int, held: int, cut: int) -> str:
    total = held + cut
    if shown == total:
        return ""
    return f"{number(shown)} of {number(total)} rows"
