"""The first screen of an investigation: the memo's first page, and where the rest lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from firstbad.agent.console import paint, table, width, wrap
from firstbad.agent.incident import Incident
from firstbad.agent.memo.head import FirstPage, first_page
from firstbad.agent.memo.words import Row
from firstbad.agent.plain import plain
from firstbad.agent.reading import saved_evidence
from firstbad.playbooks.results import Verdict

OUTCOME_STYLES = {"incident": "red", "healthy": "green", "undetermined": "yellow"}
LAYER_STYLES = {
    "pass": ("green",),
    "fail": ("red", "bold"),
    "inconclusive": ("yellow",),
    "waived": ("yellow",),
    "not_reached": ("dim",),
}
REASON = 160
"""Longest reason of a layer; the memo has the whole one."""


def first_screen(incident: Incident, verdict: Verdict) -> str:
    """Outcome, cause, first bad step, what to do, what is open, the layers, where the memo is."""
    page = first_page(verdict, {e.id: e for e in saved_evidence(incident)})
    sections = [
        _headline(page),
        _facts(page),
        _section("What to do now", _to_do(page)),
        _section("Before you act" if page.actions else "What is open", _caveats(page)),
        _section("Passed on weaker evidence", page.weak if page.outcome == "healthy" else ()),
        _section("Looks odd and is normal", (Row("-", note) for note in page.notes)),
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
    yield from _table([*cause, *page.facts, *answers])


def _to_do(page: FirstPage) -> Iterator[Row]:
    yield from page.actions
    for request in page.requests:
        text = f"{request.need}; decides: {request.decides}"
        if request.advice:
            text += f"; {request.advice}"
        if request.command:
            text += f"; then check with: {request.command}"
        yield Row(f"{request.layer} needs", text)


def _caveats(page: FirstPage) -> Iterator[Row]:
    yield from page.caveats
    for at, row in enumerate(page.not_checked):
        yield Row("" if at else "not checked", f"{row.label}: {row.text}")
    if not page.not_checked:
        yield Row("not checked", page.unread)


def _layers(verdict: Verdict) -> Iterator[str]:
    rows = [
        (r.number, r.outcome, r.id, r.strength or "", _short(_clean(r.reason)))
        for r in verdict.layers
    ]
    yield paint("The walk", "bold")
    yield from table(rows, [LAYER_STYLES[r.outcome] for r in verdict.layers])


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


def _short(text: str) -> str:
    return text if len(text) <= REASON else text[: REASON - 1].rstrip() + "…"
