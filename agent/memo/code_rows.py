"""Places of the code that was given, beside what was found in the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from firstbad.agent.memo.text import brief
from firstbad.agent.memo.words import Row
from firstbad.tools.code import PLACES
from firstbad.tools.evidence import Evidence, Table

TOLD = 360
"""Characters of one place that is told."""
NAMED = 4
"""Further places that are named."""


def in_code(cause: str, evidence: Mapping[str, Evidence]) -> Iterator[Row]:
    """Where the code does what the leading finding says, and where it could do harm otherwise.

    Code that is there need not be the code that ran: both rows say so.
    """
    read = next((e for e in evidence.values() if e.tool == "read_loss_code" and e.metrics), None)
    if read is None:
        return
    table = next(
        (t for t in read.tables if t.title == PLACES), Table(title="", columns=(), rows=())
    )
    places = [tuple(map(str, row)) for row in table.rows]
    same = [place for place in places if place[0] == cause]
    for _, at, code, why, shown in same[:1]:
        told = f"`{at}` `{code.replace('`', chr(39))}`: {why} ({shown})"
        also = f"; so do {_listed(same[1:])}" if same[1:] else ""
        yield Row("in the code", f"if this is what ran, {brief(told, TOLD)}{also} ({read.id})")
    others = [place for place in places if place[0] != cause]
    if others:
        more = len(others) + table.cut_rows
        what = "further places" if same else "places"
        yield Row(
            "in the code" if not same else "also in the code",
            f"{more} {what} that can break numbers, of which nothing here shows that they did: "
            f"{_listed(others)} ({read.id})",
        )


def _listed(places: list[tuple[str, ...]]) -> str:
    named = [f"`{place[1]}` (`{place[0]}`)" for place in places[:NAMED]]
    return ", ".join(named) + (f" and {len(places) - NAMED} more" if places[NAMED:] else "")
