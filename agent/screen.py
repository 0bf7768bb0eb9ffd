"""The first screen of an investigation: enough to act on, with the way to the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firstbad.agent.console import paint, table, width, wrap
from firstbad.agent.incident import Incident
from firstbad.agent.plain import plain
from firstbad.playbooks.results import Onset, Verdict

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
REQUESTS = 4
"""Requests shown; the memo has them all."""


def first_screen(incident: Incident, verdict: Verdict) -> str:
    """Outcome, cause, first bad step, what to do, the layers, and where the memo is."""
    sections = [
        _headline(verdict),
        _facts(verdict),
        _to_do(verdict),
        _layers(verdict),
        _rest(incident, verdict),
    ]
    return "\n\n".join("\n".join(s) for s in (list(section) for section in sections) if s)


def onset_text(onset: Onset) -> str:
    """The first bad step in words."""
    signal = f" ({_clean(onset.signal)})" if onset.signal else ""
    if onset.from_start:
        return f"bad from the first measured step{signal}"
    if onset.first_bad is None:
        return f"none found{signal}"
    step = f"step {onset.first_bad}"
    if onset.sampled and onset.bracket_start is not None:
        step = f"after {onset.bracket_start}, by {onset.first_bad}"
    elif onset.last_good is not None:
        step += f", last good {onset.last_good}"
    return f"{step}{signal}"


def _headline(verdict: Verdict) -> Iterator[str]:
    word = verdict.outcome.upper()
    lines = wrap(f"{word}  {_clean(verdict.headline)}", width())
    yield lines[0].replace(word, paint(word, "bold", OUTCOME_STYLES[verdict.outcome]), 1)
    yield from lines[1:]


def _facts(verdict: Verdict) -> Iterator[str]:
    rows = []
    if leading := verdict.leading:
        rows.append(("cause", f"{leading.cause} (layer {leading.layer})"))
        rows.append(("confidence", leading.confidence))
    first = onset_text(verdict.first_bad)
    if verdict.noticed_step is not None:
        first += f"; you said {verdict.noticed_step}"
    rows.append(("first bad", first))
    if verdict.conditional_on:
        rows.append(("conditional on", ", ".join(verdict.conditional_on)))
    rows += [("waived", f"{w.layer}: {_clean(w.reason)}") for w in verdict.waivers]
    if verdict.leading and verdict.leading.refuted_by:
        rows.append(("refuted by", _clean(verdict.leading.refuted_by)))
    others = [f"{f.cause} ({f.confidence})" for f in verdict.findings[1:]]
    if others:
        rows.append(("also found", ", ".join(others)))
    rows += [("normal", _clean(note)) for note in verdict.notes[:3]]
    yield from table(rows)


def _to_do(verdict: Verdict) -> Iterator[str]:
    rows: list[Sequence[str]] = []
    if leading := verdict.leading:
        rows.append((leading.remedy_kind, _clean(leading.remedy)))
        if verdict.resume_from:
            rows.append(("resume from", f"{verdict.resume_from}, saved before the first bad step"))
        elif verdict.first_bad.from_start:
            rows.append(("resume from", "nowhere: there is no good step, start again"))
        else:
            rows.append(("resume from", "no checkpoint before the first bad step was found"))
        if leading.dilutes:
            rows.append(("only dilutes", _clean(leading.dilutes)))
    for request in verdict.requests[:REQUESTS] if verdict.outcome != "healthy" else ():
        text = f"{_clean(request.need)}; decides: {_clean(request.decides)}"
        if request.command:
            text += f"; run: {_clean(request.command)}"
        rows.append((f"{request.layer} needs", text))
    if rows:
        yield paint("What to do now", "bold")
        yield from table(rows)


def _layers(verdict: Verdict) -> Iterator[str]:
    rows = [
        (r.number, r.outcome, r.id, r.strength or "", _short(_clean(r.reason)))
        for r in verdict.layers
    ]
    yield paint("The walk", "bold")
    yield from table(rows, [LAYER_STYLES[r.outcome] for r in verdict.layers])


def _rest(incident: Incident, verdict: Verdict) -> Iterator[str]:
    """Paths and commands are never wrapped: they are copied."""
    handle = plain(incident.handle, one_line=True)
    if verdict.not_checked:
        n = len(verdict.not_checked)
        yield f"not checked  {n} check{'s' if n > 1 else ''}, listed in the memo"
    yield f"memo         {plain(str(incident.markdown_file), one_line=True)}"
    yield f"             {plain(str(incident.html_file), one_line=True)}"
    yield f"next         firstbad memo show {handle}"
    yield f"             firstbad verify {handle}"


def _clean(text: str) -> str:
    return plain(text, one_line=True)


def _short(text: str) -> str:
    return text if len(text) <= REASON else text[: REASON - 1].rstrip() + "…"
