"""The memo: a verdict and its evidence, arranged for a person who must act at 3 a.m.

Everything is chosen and written out here; the templates only place it. No number is made here
either: each comes from the verdict, from a clause or from evidence.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from firstbad.agent.memo.plots import Plot, build_plots
from firstbad.agent.memo.tables import Grid, grid
from firstbad.agent.memo.text import (
    LONGEST,
    Cut,
    Md,
    block,
    brief,
    code,
    code_html,
    cut,
    is_step,
    markdown,
    number,
    one_line,
    operands,
    rich,
    tool_command,
    visible,
)
from firstbad.playbooks.causes import causes
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.model import Cause, Decision
from firstbad.playbooks.results import (
    CheckResult,
    Clause,
    Finding,
    LayerResult,
    NotChecked,
    Onset,
    Request,
    Verdict,
)
from firstbad.tools.evidence import Evidence, Table
from firstbad.tools.run import Run

WHY, WHY_NOT = 220, 420
"""Longest reason in the table of layers, of a pass and of anything else; more stands below."""
COMPLAINT = 240
"""Longest complaint on the first screen."""
ROLLOUT = 1200
"""Longest rollout shown."""
PAIRS = 4
"""Pairs of rollouts shown."""
ALL_ROWS = 200
"""Rows of a table in the list of evidence (HTML)."""
SOURCES = 12
"""Files listed for one piece of evidence."""
WEAK = ("differential", "proxy", "declared")

_CONDITIONS = {
    "needs": {True: "met", False: "not met", None: "not observed"},
    "fail_if": {True: "broken", False: "holds", None: "not observed"},
    "doubt_if": {True: "doubtful", False: "holds", None: "not observed"},
}
_PHRASES = {"needs": "needs", "fail_if": "fails if", "doubt_if": "in doubt if"}
_WINDOWS = {
    "onset": "onset found",
    "steady": "steady: nothing leaves its band",
    "bad_from_start": "bad from the start",
}


@dataclass(frozen=True)
class Memo:
    """One memo in two forms with the same content."""

    markdown: str
    html: str


@dataclass(frozen=True)
class Row:
    """A label and what it says."""

    label: str
    text: str


@dataclass(frozen=True)
class RequestView:
    """Evidence to get; the way to get it is a shell command, or prose with code in backticks."""

    layer: str
    need: str
    command: str
    advice: str
    decides: str


@dataclass(frozen=True)
class ClauseView:
    """One comparison, both operands shown."""

    measure: str
    observed: str
    condition: str
    result: str
    evidence: str
    state: str
    """`bad` when it speaks against the run, `open` when it leaves the check undecided, or empty."""


@dataclass(frozen=True)
class CheckView:
    """One check of a layer."""

    name: str
    place: str
    asks: str
    outcome: str
    word: str
    strength: str
    message: str
    clauses: tuple[ClauseView, ...]
    excludes_not: str
    evidence: tuple[str, ...]
    is_fact: bool
    """True for a check that was read although its layer was not reached."""


@dataclass(frozen=True)
class LayerView:
    """One layer of the walk."""

    id: str
    number: str
    asks: str
    outcome: str
    word: str
    strength: str
    why: str
    checks: tuple[CheckView, ...]
    closes: bool
    """True for the layer at which the way is closed."""


@dataclass(frozen=True)
class FindingView:
    """A finding beside the leading one."""

    cause: str
    layer: str
    claim: str
    onset: str
    confidence: str
    role: str
    remedy: str
    supports: str
    refuted_by: str


@dataclass(frozen=True)
class EvidenceView:
    """One piece of evidence, with what recomputes it."""

    id: str
    tool: str
    status: str
    origin: str
    summary: str
    signal: str
    settings: str
    steps: str
    metrics: tuple[Row, ...]
    focus_grids: tuple[Grid, ...]
    """A few rows of each table, those around the first bad step."""
    grids: tuple[Grid, ...]
    sources: tuple[tuple[str, str], ...]
    sources_left_out: str
    command: str


@dataclass(frozen=True)
class Side:
    """One side of a pair: its name, and texts with what they are."""

    name: str
    texts: tuple[tuple[str, Cut], ...]


@dataclass(frozen=True)
class Pair:
    """A rollout before and one after, side by side."""

    title: str
    sides: tuple[Side, Side]


@dataclass(frozen=True)
class View:
    """All that the templates place."""

    title: str
    run: str
    outcome: str
    word: str
    headline: str
    cause: str
    wrong: str
    complaint: str
    facts: tuple[Row, ...]
    actions: tuple[Row, ...]
    caveats: tuple[Row, ...]
    requests: tuple[RequestView, ...]
    not_checked: tuple[Row, ...]
    weak: tuple[Row, ...]
    layers: tuple[LayerView, ...]
    window: str
    focus_title: str
    focus: tuple[EvidenceView, ...]
    plots: tuple[Plot, ...]
    plots_key: str
    plots_note: str
    pairs: tuple[Pair, ...]
    pairs_note: str
    others: tuple[FindingView, ...]
    contradicts: tuple[Row, ...]
    ruled_out: tuple[str, ...]
    decisions: tuple[Decision, ...]
    notes: tuple[str, ...]
    evidence: tuple[EvidenceView, ...]
    about: tuple[Row, ...]
    verify: str


def build_memo(
    verdict: Verdict, evidence: Mapping[str, Evidence], run: Run | None, loaded: Loaded
) -> Memo:
    """The memo of a verdict; the same inputs give the same bytes.

    Args:
        verdict: the conclusion.
        evidence: all evidence of the investigation, by id.
        run: the run, for the plots; None when it can't be read any more.
        loaded: the playbook that judged.
    """
    view = _view(verdict, evidence, run, loaded)
    style = environments()[0].get_template("style.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page, text = environments()
    known = dict.fromkeys(evidence)
    html = page.get_template("memo.html.j2").render(
        v=view, known=known, style=Markup(style), style_digest=digest
    )
    return Memo(markdown=_tidy(text.get_template("memo.md.j2").render(v=view)), html=html)


@cache
def environments() -> tuple[Environment, Environment]:
    """Jinja for HTML and for Markdown: in both, what is not marked as safe is escaped."""
    settings: dict[str, Any] = {
        "loader": PackageLoader("firstbad.agent.memo", "templates"),
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
    }
    page = Environment(
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        **settings,
    )
    page.filters.update(rich=rich, code=code_html)
    text = Environment(
        autoescape=False,
        finalize=lambda value: value if isinstance(value, Md) else markdown(str(value)),
        **settings,
    )
    text.filters.update(code=code, block=block, written=Md)
    text.globals.update(md=Md)
    return page, text


def _tidy(text: str) -> str:
    """At most one empty line in a row, outside fenced blocks."""
    lines: list[str] = []
    fence = ""
    for line in text.rstrip("\n").split("\n"):
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = "`" * (len(line) - len(line.lstrip("`")))
        elif not line and lines and not lines[-1]:
            continue
        lines.append(line)
    return "\n".join(lines) + "\n"


# -------------------------------------------------------------------------------------------- view


def _view(
    verdict: Verdict, evidence: Mapping[str, Evidence], run: Run | None, loaded: Loaded
) -> View:
    leading = verdict.leading
    cause = causes().get(leading.cause) if leading else None
    first_bad = verdict.first_bad.first_bad
    word = {"incident": "INCIDENT", "healthy": "HEALTHY", "undetermined": "UNDETERMINED"}
    focus = _focus(verdict)
    pairs, pairs_note = _pairs(evidence, focus)
    listed = {
        id_: _evidence(e, verdict, first_bad) for id_, e in evidence.items()
    }
    return View(
        title=f"{word[verdict.outcome]}: {one_line(leading.cause if leading else verdict.run)}",
        run=f"{verdict.run} · {verdict.framework} · incident {verdict.incident}",
        outcome=verdict.outcome,
        word=word[verdict.outcome],
        headline=verdict.headline,
        cause=leading.cause if leading else "",
        wrong=cause.wrong if cause else "",
        complaint=brief(verdict.complaint, COMPLAINT),
        facts=tuple(_facts(verdict, leading)),
        actions=tuple(_actions(verdict, leading, cause, evidence)),
        caveats=tuple(_caveats(verdict, leading, cause)),
        requests=tuple(_request(r) for r in verdict.requests),
        not_checked=tuple(_not_checked(verdict.not_checked)),
        weak=tuple(_weak(verdict)),
        layers=tuple(_layers(verdict, loaded, evidence)),
        window=_WINDOWS[verdict.window],
        focus_title=_focus_title(verdict),
        focus=tuple(
            listed[id_]
            for id_ in focus
            if id_ in listed
            and evidence[id_].tool != "read_rollouts"
            and evidence[id_].status == "measured"
        ),
        plots=build_plots(verdict, evidence, run),
        plots_key=_plots_key(verdict),
        plots_note=(
            ""
            if run is not None
            else "The run's files could not be read when this memo was written: "
            "plots of its signals are left out."
        ),
        pairs=pairs,
        pairs_note=pairs_note,
        others=tuple(_other(f, verdict) for f in verdict.findings if f is not leading),
        contradicts=tuple(
            Row(id_, evidence[id_].summary)
            for id_ in (leading.contradicts if leading else ())
            if id_ in evidence
        ),
        ruled_out=leading.ruled_out if leading else (),
        decisions=tuple(
            d for d in loaded.playbook.decisions if leading is not None and leading.cause in d.causes
        ),
        notes=verdict.notes,
        evidence=tuple(listed.values()),
        about=tuple(_about(verdict)),
        verify=f"firstbad verify {one_line(verdict.incident)}",
    )


def _plots_key(verdict: Verdict) -> str:
    """What the marks on the plots mean."""
    onset = verdict.first_bad
    told = []
    if onset.last_good is not None:
        told.append(f"Shaded: steps up to the last good one, {_step(onset.last_good)}.")
    if onset.first_bad is not None:
        what = "first bad step" if verdict.outcome == "incident" else "first change"
        told.append(f"Vertical line: {what}, {_step(onset.first_bad)}.")
    return " ".join(told)


def _step(step: int) -> str:
    return number(step, step=True)


def onset_text(onset: Onset) -> str:
    """When it began, in words."""
    if onset.from_start:
        first = f" (step {_step(onset.first_bad)})" if onset.first_bad is not None else ""
        return f"bad from the first measured step{first}"
    if onset.first_bad is None:
        return "not dated"
    if onset.last_good is None:
        return f"step {_step(onset.first_bad)}, no good step before it was measured"
    if onset.sampled:
        return (
            f"between step {_step(onset.last_good)} (good) and step {_step(onset.first_bad)} (bad); "
            "the steps between were not measured"
        )
    return f"step {_step(onset.first_bad)} (last good {_step(onset.last_good)})"


def _facts(verdict: Verdict, leading: Finding | None) -> Iterable[Row]:
    """The few figures under the headline."""
    onset = verdict.first_bad
    if leading is not None:
        if onset.from_start:
            yield Row("first bad step", "from the start")
        elif onset.sampled and onset.last_good is not None and onset.first_bad is not None:
            yield Row("first bad step", f"{_step(onset.last_good)} to {_step(onset.first_bad)}")
        else:
            yield Row("first bad step", "not dated" if onset.first_bad is None else _step(onset.first_bad))
        yield Row("last good", number(onset.last_good, step=True))
    elif onset.first_bad is not None:
        yield Row("first change", _step(onset.first_bad))
    yield Row(
        "you noticed",
        "not said" if verdict.noticed_step is None else _step(verdict.noticed_step),
    )
    if leading is not None:
        yield Row("confidence", leading.confidence)
    yield Row("window", verdict.window.replace("_", " "))
    if leading is not None or verdict.conditional_on:
        yield Row("conditional on", ", ".join(verdict.conditional_on) or "nothing")


def _actions(
    verdict: Verdict,
    leading: Finding | None,
    cause: Cause | None,
    evidence: Mapping[str, Evidence],
) -> Iterable[Row]:
    """The table `do now`."""
    if leading is None:
        return
    onset = verdict.first_bad
    yield Row("stop", _stop(onset, evidence))
    label = {"fixes": "fix", "dilutes": "only dilutes", "experiment": "experiment"}
    if remedy := leading.remedy or (cause.remedy if cause else ""):
        yield Row(label[leading.remedy_kind], remedy)
    yield Row("resume", _resume(verdict, onset))
    if cause and cause.verify:
        yield Row("verify", cause.verify)
    if dilutes := leading.dilutes or (cause.dilutes if cause else ""):
        yield Row("only dilutes", dilutes)


def _stop(onset: Onset, evidence: Mapping[str, Evidence]) -> str:
    seen = max((e.window.last for e in evidence.values() if e.window), default=None)
    until = f"; last step seen {_step(seen)}" if seen is not None else ""
    if onset.from_start:
        return f"the run, if it still trains: every step carries the fault{until}"
    if onset.first_bad is None:
        return f"the run, if it still trains; the fault could not be dated{until}"
    return f"the run, if it still trains: every step from {_step(onset.first_bad)} on carries the fault{until}"


def _resume(verdict: Verdict, onset: Onset) -> str:
    if onset.from_start:
        return "start again: there is no good step to go back to"
    if verdict.resume_from is None:
        return "no checkpoint before the first bad step was found; start again, or from one kept elsewhere"
    at = f" before step {_step(onset.first_bad)}" if onset.first_bad is not None else ""
    return f"from `{one_line(verdict.resume_from)}`, the last checkpoint{at}"


def _caveats(verdict: Verdict, leading: Finding | None, cause: Cause | None) -> Iterable[Row]:
    """What a reader must know before acting."""
    if leading is not None and leading.first_bad.signal:
        yield Row("dated by", leading.first_bad.signal)
    for waiver in verdict.waivers:
        yield Row("waived", f"layer `{waiver.layer}`: {waiver.reason}")
    if leading is not None:
        if refuted := leading.refuted_by or (cause.refuted_by if cause else ""):
            yield Row("would refute it", refuted)
        if leading.origin != "gate":
            yield Row("origin", f"proposed by {leading.origin}, not by a gate")
    closed = [r.id for r in verdict.layers if r.outcome == "not_reached"]
    if closed:
        blocker = _blocker(verdict.layers)
        because = f" (not interpretable while `{blocker}` is not passed)" if blocker else ""
        yield Row("not checked", f"{_names(closed)}{because}")
    elif verdict.not_checked:
        yield Row("not checked", _names([f"{n.layer}.{n.check}" for n in verdict.not_checked]))
    else:
        yield Row("not checked", "nothing that the playbook asks for")


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _blocker(layers: Sequence[LayerResult]) -> str | None:
    return next((r.id for r in layers if r.outcome in ("fail", "inconclusive")), None)


def _request(request: Request) -> RequestView:
    prose = "`" in request.command
    return RequestView(
        layer=request.layer,
        need=request.need,
        command="" if prose else brief(request.command, LONGEST),
        advice=request.command if prose else "",
        decides=request.decides,
    )


def _not_checked(items: Sequence[NotChecked]) -> Iterable[Row]:
    """What was not read, checks with the same reason in one row."""
    by_why: dict[str, list[str]] = {}
    for item in items:
        by_why.setdefault(item.why, []).append(f"{item.layer}.{item.check}")
    return (Row(_names(names), why) for why, names in by_why.items())


def _weak(verdict: Verdict) -> Iterable[Row]:
    """Passes by less than direct evidence, with what they do not exclude."""
    for result in verdict.layers:
        if result.outcome != "pass" or result.strength not in WEAK:
            continue
        open_ = dict.fromkeys(
            c.excludes_not for c in verdict.checks if c.layer == result.id and c.excludes_not
        )
        what = "; ".join(open_) or "the playbook does not say what this leaves open"
        yield Row(f"{result.id} ({result.strength})", what)


# -------------------------------------------------------------------------------------------- walk


def _layers(
    verdict: Verdict, loaded: Loaded, evidence: Mapping[str, Evidence]
) -> Iterable[LayerView]:
    asked = {layer.id: layer for layer in loaded.playbook.layers}
    blocker = _blocker(verdict.layers)
    for result in verdict.layers:
        layer = asked.get(result.id)
        asks = {c.id: c.asks for c in layer.checks} if layer else {}
        reached = result.outcome != "not_reached"
        why = result.reason if reached else f"not interpreted: `{blocker}` has not passed"
        yield LayerView(
            id=result.id,
            number=result.number,
            asks=layer.asks if layer else "",
            outcome=result.outcome,
            word=result.outcome.replace("_", " "),
            strength=result.strength or "",
            why=brief(why, WHY if result.outcome == "pass" else WHY_NOT),
            checks=tuple(
                _check(c, asks.get(c.check, ""), reached)
                for c in verdict.checks
                if c.layer == result.id
            ),
            closes=result.id == blocker,
        )


def _check(result: CheckResult, asks: str, reached: bool) -> CheckView:
    return CheckView(
        name=result.check,
        place=f"{result.layer}.{result.check}",
        asks=asks,
        outcome=result.outcome,
        word=result.outcome.replace("_", " "),
        strength=result.strength or "",
        message=_message(result),
        clauses=tuple(_clause(c) for c in result.clauses),
        excludes_not=result.excludes_not,
        evidence=result.evidence,
        is_fact=not reached and result.outcome != "not_reached",
    )


def _message(result: CheckResult) -> str:
    if result.reason == "tool_error":
        return f"the tool broke: {result.message}"
    if result.blocked_by:
        return f"not read: needs {_names(result.blocked_by)}"
    return result.message


def _clause(clause: Clause) -> ClauseView:
    observed, limit = operands(
        clause.observed, float(clause.limit), step=is_step(clause.measure.split(".", 1)[-1])
    )
    if isinstance(clause.observed, bool) and clause.op in ("==", "!=") and clause.limit in (0, 1):
        limit = number(bool(clause.limit))
    undecided = clause.held is not True if clause.role == "needs" else clause.held is None
    if clause.role == "doubt_if":
        undecided = clause.held is not False
    broken = clause.role == "fail_if" and clause.held is True
    return ClauseView(
        measure=clause.measure,
        observed=observed,
        condition=f"{_PHRASES[clause.role]} {clause.op} {limit}",
        result=_CONDITIONS[clause.role][clause.held],
        evidence=clause.evidence or "",
        state="bad" if broken else "open" if undecided else "",
    )


# --------------------------------------------------------------------------------- focus, rollouts


def _focus(verdict: Verdict) -> tuple[str, ...]:
    """Ids of the evidence that the leading finding cites, or that left a layer open."""
    leading = verdict.leading
    if leading is None:
        blocker = _blocker(verdict.layers)
        open_ = [c for c in verdict.checks if c.layer == blocker and c.outcome == "inconclusive"]
        return tuple(dict.fromkeys(id_ for c in open_ for id_ in c.evidence))
    failed = [c for c in verdict.checks if c.layer == leading.layer and c.outcome == "fail"]
    failed.sort(key=lambda c: c.check != leading.check)
    return tuple(
        dict.fromkeys([*leading.supports, *(id_ for c in failed for id_ in c.evidence)])
    )


def _focus_title(verdict: Verdict) -> str:
    if verdict.leading is not None:
        return f"Evidence for `{verdict.leading.layer}`"
    blocker = _blocker(verdict.layers)
    return f"Evidence so far for `{blocker}`" if blocker else ""


def _pairs(
    evidence: Mapping[str, Evidence], focus: Sequence[str]
) -> tuple[tuple[Pair, ...], str]:
    """Rollouts side by side, from the evidence that read them."""
    found = [e for e in evidence.values() if e.tool == "read_rollouts" and e.tables]
    found.sort(key=lambda e: e.id not in focus)
    pairs: list[Pair] = []
    total = 0
    for one in found:
        for table in one.tables:
            at = _before_after(table)
            if at is None:
                continue
            total += len(table.rows) + table.cut_rows
            pairs += (_pair(table, row, *at) for row in table.rows)
    if not pairs:
        return (), ""
    note = f"{found[0].id}: {found[0].summary}"
    if total > len(pairs[:PAIRS]):
        note += f"; {number(len(pairs[:PAIRS]))} of {number(total)} pairs shown"
    return tuple(pairs[:PAIRS]), note


def _before_after(table: Table) -> tuple[list[int], list[int]] | None:
    """Columns with text before and after the onset, when the table has both."""
    names = [name.lower() for name in table.columns]
    before = [i for i, name in enumerate(names) if name.startswith("before")]
    after = [i for i, name in enumerate(names) if name.startswith("after")]
    texts = all(isinstance(row[i], str | None) for row in table.rows for i in (*before, *after))
    return (before, after) if before and after and texts else None


def _pair(table: Table, row: Sequence[Scalar], before: list[int], after: list[int]) -> Pair:
    rest = [
        f"{name}: {brief(number(row[i], step=is_step(name)), 120)}"
        for i, name in enumerate(table.columns)
        if i not in (*before, *after)
    ]

    def side(name: str, places: list[int]) -> Side:
        return Side(
            name,
            tuple(
                (
                    brief(table.columns[i][len(name) :].strip(" :"), 60),
                    cut(number(row[i]), ROLLOUT),
                )
                for i in places
            ),
        )

    return Pair("; ".join(rest), (side("before", before), side("after", after)))


# ---------------------------------------------------------------------------------- findings, list


def _other(finding: Finding, verdict: Verdict) -> FindingView:
    leading = verdict.leading
    if leading is not None and finding.mechanism_of == leading.id:
        role = "mechanism of the leading finding"
    elif finding.independent:
        role = "independent fact"
    else:
        role = "further finding"
    return FindingView(
        cause=finding.cause,
        layer=finding.layer,
        claim=finding.claim,
        onset=onset_text(finding.first_bad),
        confidence=finding.confidence,
        role=role,
        remedy=finding.remedy,
        supports=", ".join(finding.supports),
        refuted_by=finding.refuted_by,
    )


def _evidence(found: Evidence, verdict: Verdict, first_bad: int | None) -> EvidenceView:
    window = found.window
    tables = [t for t in found.tables if t.rows and _before_after(t) is None]
    return EvidenceView(
        id=found.id,
        tool=found.tool,
        status=found.status.replace("_", " "),
        origin=found.origin,
        summary=found.error or found.summary,
        signal=found.signal,
        settings=", ".join(
            f"{name}={brief(number(value, step=is_step(name)), 200)}"
            for name, value in found.args.items()
        ),
        steps=f"{_step(window.first)} to {_step(window.last)}" if window else "",
        metrics=tuple(
            Row(name, number(value, step=is_step(name)))
            for name, value in (found.metrics or {}).items()
        ),
        focus_grids=tuple(
            grid(table, first_bad=first_bad, most=10 if is_step(table.columns[0]) else 8)
            for table in tables
        ),
        grids=tuple(grid(table, first_bad=first_bad, most=ALL_ROWS) for table in tables),
        sources=tuple(
            (f"{s.ref} ({s.kind})" if s.kind else s.ref, s.digest or "")
            for s in found.sources[:SOURCES]
        ),
        sources_left_out=(
            f"{number(SOURCES)} of {number(len(found.sources))} shown"
            if len(found.sources) > SOURCES
            else ""
        ),
        command=one_line(tool_command(found.tool, verdict.run, found.args)),
    )


def _about(verdict: Verdict) -> Iterable[Row]:
    yield Row("incident", verdict.incident)
    yield Row("run", f"{verdict.run} ({verdict.framework})")
    yield Row(
        "playbook", ", ".join(f"{p.name} {p.digest}" for p in verdict.playbooks)
    )
    yield Row("versions", ", ".join(f"{k} {v}" for k, v in sorted(verdict.versions.items())))
    usage = verdict.usage
    model = (
        f"{number(usage.model_calls)} model calls, {number(usage.tokens)} tokens, "
        f"{number(usage.cost_usd)} USD"
        if usage.model_calls
        else "no model"
    )
    yield Row(
        "cost",
        f"{number(usage.tool_calls)} tool calls, {model}, {number(usage.seconds, digits=2)} s",
    )
