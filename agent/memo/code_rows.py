"""Places of the code that was given, beside what was found in the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from firstbad.agent.memo.text import brief
from firstbad.agent.memo.words import Row
from firstbad.playbooks.results import Finding
from firstbad.tools.code import PLACES
from firstbad.tools.evidence import Evidence, Table

TOLD = 360
"""Characters of one place that is told."""
NAMED = 4
"""Further places that are named."""
_PLACE = re.compile(r"([^/\\\s(]+\.py:\d+)(?!\d)")

Place = tuple[str, ...]
"""Cause, file and line, code, why, and numbers that show it."""


def in_code(findings: Sequence[Finding], evidence: Mapping[str, Evidence]) -> Iterator[Row]:
    """Where the code does what was found, the leading finding first, and where it could do harm.

    Code that is there need not be the code that ran: the rows say so, but for a place that the
    record itself names.
    """
    read = next((e for e in evidence.values() if e.tool == "read_loss_code" and e.metrics), None)
    if read is None:
        return
    table = next(
        (t for t in read.tables if t.title == PLACES), Table(title="", columns=(), rows=())
    )
    left: list[Place] = [tuple(map(str, row)) for row in table.rows]
    label = "in the code"
    named = _named(evidence)
    for place in [p for p in left if _short(p) in named]:
        at = f"the first value that is not finite arose there ({named[_short(place)]})"
        yield Row(label, f"{_told(place)}: {at}; {brief(place[3], TOLD)} ({read.id})")
        label = "also in the code"
        left.remove(place)
    for cause in dict.fromkeys(f.cause for f in findings):
        same = [place for place in left if place[0] == cause]
        if not same:
            continue
        which = "" if findings[0].cause == cause else f", as `{cause}`, also found, would have it"
        told = brief(f"{_told(same[0])}: {same[0][3]} ({same[0][4]})", TOLD)
        also = f"; so do {_listed(same[1:])}" if same[1:] else ""
        yield Row(label, f"if this is what ran{which}, {told}{also} ({read.id})")
        label = "also in the code"
        left = [place for place in left if place[0] != cause]
    if left:
        more = len(left) + table.cut_rows
        further = "further " if label != "in the code" else ""
        what, they = ("place", "it did") if more == 1 else ("places", "they did")
        yield Row(
            label,
            f"{more} {further}{what} that can break numbers, of which nothing here shows that "
            f"{they}: {_listed(left)} ({read.id})",
        )


def _named(evidence: Mapping[str, Evidence]) -> dict[str, str]:
    """Files and lines at which the record saw the first value that is not finite, with evidence."""
    return {
        place: e.id
        for e in evidence.values()
        if e.tool == "read_trail"
        for place in _PLACE.findall(e.quote)
    }


def _short(place: Place) -> str:
    """File name and line: the code may lie in another folder than where it ran."""
    return place[1].rpartition("/")[2]


def _told(place: Place) -> str:
    return f"`{place[1]}` `{place[2].replace('`', chr(39))}`"


def _listed(places: Sequence[Place]) -> str:
    named = [f"`{place[1]}` (`{place[0]}`)" for place in places[:NAMED]]
    return ", ".join(named) + (f" and {len(places) - NAMED} more" if places[NAMED:] else "")
