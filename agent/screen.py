"""The first screen of an investigation: the memo's first page, and where the rest lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from firstbad.agent.console import NARROW, cells, paint, table, width, wrap
from firstbad.agent.incident import Incident
from firstbad.agent.memo.head import FirstPage, first_page
from firstbad.agent.memo.text import brief
from firstbad.agent.memo.words import Row, read_all_the_same
from firstbad.agent.plain import plain
from firstbad.agent.reading import remarks_in, saved_evidence
from firstbad.playbooks.results import Verdict

OUTCOME_STYLES = {"incident": "red", "healthy": "green", "undetermined": "yellow"}
LAYER_STYLES = {
    "pass": ("green",),
    "fail": ("red", "bold"),
    "inconclusive": ("yellow",),
    "waived": ("yellow",),
    "not_reached": ("dim",),
}
REASON = 1200
"""Longest reason of a layer that did not pass: it is the message, and is told on several lines."""
REMARKS = 3
"""Remarks on the reading that are shown."""


def first_screen(incident: Incident, verdict: Verdict) -> str:
    """Outcome, cause, first bad step, what to do, what is open, the layers, where the memo is."""
    evidence = {e.id: e for e in saved_evidence(incident)}
    noticed = remarks_in(incident.record())
    page = first_page(verdict, evidence, noticed)
    is_incident = page.outcome == "incident"
    sections = [
        _headline(page),
        _facts(page),
        _section("What to do now", _to_do(page)),
        _section("Before you act" if is_incident else "What is open", _caveats(page)),
        _section("Looks odd and is normal", _notes(page)),
        _section("Passed on weaker evidence", page.weak if page.outcome == "healthy" else ()),
        _layers(verdict),
        _rest(incident),
    ]
    return "\n\n".join("\n".join(s) for s in (list(section) for section in sections) if s)


def _headline(page: FirstPage) -> Iterator[str]:
    lines = wrap(f"{page.word}. {_clean(page.headline)}", width())
    yield lines[0].replace(page.word, paint(page.word, "bold", OUTCOME_STYLES[page.outcome]), 1)
    yield from lines[1:]


def _facts(page: FirstPage) -> Iterator[str]:
    cause = [Row("cause", f"{page.cause} (layer {page.layer}): {page.wrong}")] if page.cause else []
    answers = [Row("on what you said", text) for text in page.answers]
    reading = page.reading[:REMARKS]
    if more := len(page.reading) - len(reading):
        reading = (*reading, Row("", f"{more} more in the memo"))
    yield from _table([*cause, *page.facts, *answers, *reading])


def _to_do(page: FirstPage) -> Iterator[Row]:
    """Actions, and where no cause is known what to fetch; the memo has the commands."""
    yield from page.actions
    if page.outcome != "undetermined":
        return
    for request in page.requests:
        text = f"{request.need}; decides: {request.decides}"
        yield Row(
            f"{request.layers[0]} needs", f"{text}; {request.advice}" if request.advice else text
        )
    if page.then:
        yield Row("then", page.then)


def _caveats(page: FirstPage) -> Iterator[Row]:
    yield from page.caveats
    yield Row("not checked", page.unread)
    yield from page.apart


def _notes(page: FirstPage) -> Iterator[Row]:
    """Where all is well each note in a sentence, as it is the answer; else only their number."""
    if page.outcome == "healthy":
        yield from (Row("-", note.split(". ")[0].rstrip(".") + ".") for note in page.notes)
    elif page.notes:
        yield Row("-", f"{len(page.notes)} notes in the memo" if page.notes[1:] else page.notes[0])


def _layers(verdict: Verdict) -> Iterator[str]:
    """A line a layer; what closed the way in full, what lies behind it together."""
    facts = {c.layer for c in verdict.checks if c.outcome == "fail"}
    rows: list[tuple[str, ...]] = []
    styles = []
    nothing_read = [r for r in verdict.layers if r.outcome == "not_reached" and r.id not in facts]
    for r in verdict.layers:
        if r in nothing_read:
            continue
        reason = _clean(r.reason)
        if r.outcome == "not_reached":
            reason = _clean(read_all_the_same(r, verdict.checks))
        rows.append((r.number, r.outcome.replace("_", " "), r.id, r.strength or "", reason))
        styles.append(LAYER_STYLES[r.outcome])
    room = width() - sum(max(cells(row[i]) for row in rows) + 2 for i in range(4))
    rows = [
        (*row[:4], _short(row[4], room if row[1] == "pass" and room >= NARROW else REASON))
        for row in rows
    ]
    yield paint("The walk", "bold")
    yield from table(rows, styles)
    if nothing_read:
        closed = ", ".join(r.id for r in nothing_read)
        yield from wrap(f"not reached: {closed} (an earlier layer has not passed)", width())


def _rest(incident: Incident) -> Iterator[str]:
    """Paths and commands are never wrapped: they are copied."""
    handle = plain(incident.handle, one_line=True)
    yield f"memo  {plain(str(incident.markdown_file), one_line=True)}"
    yield f"      {plain(str(incident.html_file), one_line=True)}"
    yield f"next  firstbad memo show {handle}"
    yield f"      firstbad verify {handle}"


def _section(title: str, rows: Iterable[Row]) -> Iterator[str]:
    """A titled table; nothing when it has no rows."""
    lines = _table(rows)
    if lines and title:
        yield paint(title, "bold")
    yield from lines


def _table(rows: Iterable[Row]) -> list[str]:
    return table([(row.label, _clean(row.text)) for row in rows])


def _clean(text: str) -> str:
    return plain(text, one_line=True)


def _short(text: str, room: int) -> str:
    """At most so many columns, ended between words."""
    if cells(text) <= room:
        return text
    return brief(text, max(1, room * len(text) // cells(text) - len(" …")))
