"""Conclude: from judged layers and checks to findings, the leading one, and the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from firstbad.playbooks.causes import causes
from firstbad.playbooks.complaints import (
    Open,
    answers_to,
    claims_made,
    general_answer,
    left_open,
    request_of,
    unjudged,
)
from firstbad.playbooks.fill import fill
from firstbad.playbooks.gate import Seen, all_hold, observe, why_undecided
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.model import Check, Layer, Otherwise, Pointer
from firstbad.playbooks.requests import requests_of
from firstbad.playbooks.results import (
    CheckResult,
    Confidence,
    Finding,
    LayerResult,
    LeastBad,
    NotChecked,
    Onset,
    Request,
    Usage,
    Verdict,
    Waiver,
    first_spoiled,
)
from firstbad.playbooks.walk import window_kind
from firstbad.tools.evidence import Evidence, Record

LOWER: dict[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}
STILL_GOING = "nothing measured here dates it"


class Ask(Record):
    """What was asked, of which run."""

    incident: str
    run: str
    framework: str
    complaint: str = ""
    noticed_step: int | None = None
    symptoms: tuple[str, ...] = ()
    """What the complaint says, in the words of its grammar."""


def conclude(
    loaded: Loaded,
    *,
    ask: Ask,
    layers: Sequence[LayerResult],
    checks: Sequence[CheckResult],
    seen: Seen,
    waivers: Sequence[Waiver],
    checkpoint_steps: Sequence[int],
    usage: Usage,
    versions: Mapping[str, str],
) -> Verdict:
    """Read the judged record and conclude; the same record gives the same verdict."""
    book = loaded.playbook
    by_check = {(layer.id, c.id): c for layer in book.layers for c in layer.checks}
    findings = findings_of(loaded, layers, checks, seen)
    closed_at = next((r for r in layers if r.outcome in ("fail", "inconclusive")), None)
    open_layers = tuple(r.id for r in layers if r.outcome == "inconclusive")
    waived = tuple(r.id for r in layers if r.outcome == "waived")
    window = window_kind(book, seen)
    onset = _window_onset(seen)
    claims = claims_made(book.complaints, ask.symptoms, seen, book.compared, named=ask.noticed_step)
    unanswered = left_open(claims, checks)
    unexplained = next((c for c in book.unexplained if all_hold(c.when, seen)), None)
    unused = [w.layer for w in waivers if w.layer not in waived]
    about_step = book.about_step if ask.noticed_step is not None else ()
    answers = list(answers_to(claims, about_step, checks, seen, next(iter(findings), None)))
    not_judged = [] if findings else unjudged(claims, ask.symptoms)
    if not_judged:
        answers.append(
            f"The complaint names {', '.join(not_judged)}: no check of this playbook looks for its "
            "cause."
        )
    notes = (
        *_notes(book.layers, checks, seen),
        *(
            f"The waiver of `{name}` was not used: the layer did not stop the way."
            for name in unused
        ),
    )
    first_bad = findings[0].first_bad if findings else onset
    outcome: Literal["incident", "healthy", "undetermined"]
    if findings:
        outcome = "incident"
        headline = findings[0].claim
        if first_bad.from_start:
            window = "bad_from_start"
        elif first_bad.first_bad is not None:
            window = "onset"
    elif closed_at is not None:
        outcome = "undetermined"
        headline = (
            f"{_change(seen)}No check failed, but layer `{closed_at.id}` could not be decided, "
            "so nothing after it may be read."
        )
    elif unexplained is not None:
        outcome = "undetermined"
        headline = f"No check failed, and yet: {fill(unexplained.say, seen)}"
    elif unanswered:
        outcome = "undetermined"
        said = "; ".join(f"that {o.claim.says} ({o.why})" for o in unanswered)
        headline = f"No check failed, but what the complaint says is not answered: {said}."
    elif window == "steady" or all_hold(book.outcome_holds, seen):
        outcome = "healthy"
        headline = "Every layer passed and no check failed."
        if waived:
            names = ", ".join(f"`{name}`" for name in waived)
            headline = f"As far as it was read, no check failed. Waived, not passed: {names}."
        if window != "steady":
            headline += " A signal moved, the outcome held: a change, not a fault."
        headline += _rests_on(checks)
        if not_judged:
            headline += f" Not judged: {', '.join(not_judged)}."
    else:
        outcome = "undetermined"
        headline = (
            "Every layer passed, yet the outcome fell: the cause lies where nothing was measured."
        )
    if not answers and "is_normal" in ask.symptoms:
        answers.append(general_answer(outcome))
    requests = tuple(
        dict.fromkeys(
            _requests(
                by_check,
                checks,
                seen,
                ask,
                unanswered if not findings and closed_at is None else [],
                findings[0] if findings else None,
                [r.id for r in layers if r.outcome == "fail"],
            )
        )
    )
    if unexplained is not None and outcome == "undetermined":
        requests = (_asked(unexplained, ask), *requests)
    if outcome == "undetermined" and not requests:
        requests = tuple(dict.fromkeys(_requests_beyond(loaded, by_check, checks, seen, ask)))
    spoiled = first_spoiled(findings).first_bad if findings else None
    conditional = (*waived, *(open_layers if findings else ()))
    if findings and conditional:
        findings = [_weaken(f, conditional) for f in findings]
    return Verdict(
        incident=ask.incident,
        run=ask.run,
        framework=ask.framework,
        complaint=ask.complaint,
        outcome=outcome,
        headline=headline,
        window=window,
        first_bad=first_bad,
        noticed_step=ask.noticed_step,
        layers=tuple(layers),
        checks=tuple(checks),
        findings=tuple(findings),
        symptoms=tuple(
            f"{s.seen}: suspect {', '.join(s.suspects)} first"
            for s in book.symptoms
            if all_hold(s.when, seen)
        ),
        answers=tuple(answers),
        notes=notes,
        conditional_on=tuple(
            f"{name} (waived)" if name in waived else name for name in conditional
        ),
        waivers=tuple(waivers),
        not_checked=(
            *_not_checked(by_check, checks, seen, ask),
            *(NotChecked(layer=u.layer, check=u.check, why=u.why) for u in book.unbuilt),
        ),
        requests=requests,
        resume_from=_resume_from(spoiled, checkpoint_steps) if spoiled else None,
        least_bad=_least_bad(spoiled, checkpoint_steps) if spoiled else None,
        playbooks=(loaded.ref,),
        usage=usage,
        versions=dict(versions),
    )


def findings_of(
    loaded: Loaded, layers: Sequence[LayerResult], checks: Sequence[CheckResult], seen: Seen
) -> list[Finding]:
    """The findings of the checks that failed, the leading one first."""
    by_check = {(layer.id, c.id): c for layer in loaded.playbook.layers for c in layer.checks}
    found = [
        build_finding(by_check[r.layer, r.check], r, seen)
        for r in checks
        if r.outcome == "fail" and r.layer != "window"
    ]
    return order_findings(loaded, merge_findings(found), layers)


def build_finding(check: Check, result: CheckResult, seen: Seen) -> Finding:
    """The finding of a failed check: the first pointer whose bounds all hold."""
    pointer = next((p for p in check.points_to if all_hold(p.when, seen)), None)
    if pointer is None:
        pointer = Pointer(
            cause="other.unlisted", claim=result.message or check.asks, confidence="low"
        )
    cause = causes()[pointer.cause]
    broken = [c.evidence for c in result.clauses if c.role == "fail_if" and c.held and c.evidence]
    named = [seen[m.split(".", 1)[0]].id for m in pointer.when if m.split(".", 1)[0] in seen]
    against = [
        seen[measure.split(".", 1)[0]].id
        for measure, bound in pointer.contradicted_if.items()
        if bound.holds(observe(seen, measure)) is True
    ]
    onset = _onset_of(check, pointer, seen)
    confidence = pointer.confidence
    if against:
        confidence = LOWER[confidence]
    if result.strength in ("proxy", "declared", "differential"):
        confidence = LOWER[confidence]
    return Finding(
        id=f"F:{result.layer}.{result.check}",
        cause=cause.id,
        layer=result.layer,
        check=result.check,
        claim=fill(pointer.claim, seen) + _ended(onset),
        first_bad=onset,
        supports=tuple(dict.fromkeys([*broken, *named])) or result.evidence,
        contradicts=tuple(dict.fromkeys(against)),
        confidence=confidence,
        refuted_by=fill(pointer.refuted_by or cause.refuted_by, seen),
        remedy=fill(pointer.remedy or cause.remedy, seen),
        verify=fill(pointer.verify or cause.verify, seen),
        remedy_kind=cause.remedy_kind,
        dilutes=cause.dilutes,
        ruled_out=tuple(
            fill(text, seen) for text, bounds in pointer.ruled_out.items() if all_hold(bounds, seen)
        ),
        independent=not check.depends_on,
    )


def _ended(onset: Onset) -> str:
    """That a fault ended, as a sentence; empty where it goes on, or its end is not known."""
    if onset.last_bad is None:
        return ""
    first = "the start" if onset.from_start else f"step {onset.first_bad}"
    return f" It lasted from {first} to step {onset.last_bad}."


def merge_findings(findings: Sequence[Finding]) -> list[Finding]:
    """One finding per layer and cause: two checks that name the same cause support each other."""
    merged: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = (finding.layer, finding.cause)
        other = merged.get(key)
        if other is None:
            merged[key] = finding
            continue
        sharper = min(
            (other, finding), key=lambda f: (f.first_bad.first_bad is None, f.first_bad.sampled)
        )
        surer = min((other, finding), key=lambda f: list(LOWER).index(f.confidence))
        merged[key] = other.model_copy(
            update={
                "claim": surer.claim,
                "first_bad": sharper.first_bad,
                "confidence": surer.confidence,
                "supports": tuple(dict.fromkeys([*other.supports, *finding.supports])),
                "contradicts": tuple(dict.fromkeys([*other.contradicts, *finding.contradicts])),
                "ruled_out": tuple(dict.fromkeys([*other.ruled_out, *finding.ruled_out])),
                "independent": other.independent or finding.independent,
            }
        )
    return list(merged.values())


def order_findings(
    loaded: Loaded, findings: Sequence[Finding], layers: Sequence[LayerResult]
) -> list[Finding]:
    """The leading finding first.

    The first failed layer on the way leads, unless an independent fact with an earlier (or equal)
    onset is linked to it by `leads_to`. Where the way closed as inconclusive, facts lead in the
    order of their onset. Of several findings of one layer the surest leads, unless another one
    plainly began before it. Ties keep the order of the playbook.
    """
    if not findings:
        return []
    failed = [r.id for r in layers if r.outcome == "fail"]
    waived = [r.id for r in layers if r.outcome == "waived"]
    on_way = [f for f in findings if f.layer in failed or f.layer in waived]
    leader = _surest(on_way or findings)
    links = {(link.cause, to) for link in loaded.playbook.leads_to for to in link.to}
    upstream = [
        f
        for f in findings
        if f is not leader
        and not links.isdisjoint(
            ((f.cause, leader.layer), (f.cause, f"{leader.layer}.{leader.check}"))
        )
        and _when(f) <= _when(leader)
        and _when(f) < float("inf")
    ]
    if upstream:
        mechanism, leader = leader, min(upstream, key=_when)
        findings = [
            f.model_copy(update={"mechanism_of": leader.id}) if f is mechanism else f
            for f in findings
        ]
    rest = [f for f in findings if f.id != leader.id]
    numbered = [leader, *sorted(rest, key=_when)]
    names = {f.id: f"F{i}" for i, f in enumerate(numbered, 1)}
    return [
        f.model_copy(
            update={
                "id": names[f.id],
                "mechanism_of": names.get(f.mechanism_of) if f.mechanism_of else None,
            }
        )
        for f in numbered
    ]


def _surest(findings: Sequence[Finding]) -> Finding:
    """The earliest finding, or the surest of its layer that need not have begun later."""
    first = min(findings, key=_when)
    rivals = [f for f in findings if f.layer == first.layer and first.first_bad.latest >= _when(f)]
    return min([first, *rivals], key=lambda f: (list(LOWER).index(f.confidence), _when(f)))


def _when(finding: Finding) -> float:
    """Order by onset; what has no date comes last, ties keep the playbook's order."""
    return finding.first_bad.earliest


def _onset_of(check: Check, pointer: Pointer, seen: Seen) -> Onset:
    """The finding's own first breach; a sampled bracket is narrowed by signals that move in it."""
    aliases = [pointer.onset] if pointer.onset else list(check.evidence)
    dated = [seen[a] for a in aliases if a in seen and "first_bad_step" in (seen[a].metrics or {})]
    for evidence in dated:
        metrics = evidence.metrics or {}
        first = metrics["first_bad_step"]
        if first is None and not metrics.get("from_start"):
            continue
        onset = Onset(
            last_good=_int(metrics.get("last_good_step")),
            first_bad=_int(first),
            signal=evidence.signal or evidence.tool,
            sampled=bool(metrics.get("sampled")),
            quiet=_int(metrics.get("quiet_step")),
            from_start=bool(metrics.get("from_start")),
            last_bad=_int(metrics.get("last_bad_step")),
        )
        return onset if metrics.get("gradual") else _narrow(onset, seen)
    return Onset(last_good=None, first_bad=None, signal=STILL_GOING)


def _narrow(onset: Onset, seen: Seen) -> Onset:
    """Inside a bracket between two samples, the earliest per-step signal that moved decides."""
    window = _window_evidence(seen)
    if not onset.sampled or onset.from_start or onset.first_bad is None or window is None:
        return onset
    low = onset.bracket_start or 0
    moved = [
        (step, str(row[0]))
        for table in window.tables
        if table.title == "signals that moved"
        for row in table.rows
        if isinstance(step := row[2], int)
        and row[3] == "abrupt"
        and row[-1] is not False  # step time is shown, and sets no window
        and low < step <= onset.first_bad
    ]
    if not moved:
        return onset
    step, signal = min(moved)
    return Onset(
        last_good=step - 1,
        first_bad=step,
        signal=(
            f"{signal}, the first to move between step {low} and step {onset.first_bad}, where "
            f"{onset.signal} went bad"
        ),
        last_bad=onset.last_bad,
    )


def _window_evidence(seen: Seen) -> Evidence | None:
    return next((e for e in seen.values() if e.tool == "find_first_bad" and e.metrics), None)


def _window_onset(seen: Seen) -> Onset:
    evidence = _window_evidence(seen)
    metrics = evidence.metrics if evidence else None
    if evidence is None or metrics is None:
        return Onset(last_good=None, first_bad=None, signal="no signal can be read")
    return Onset(
        last_good=_int(metrics.get("last_good_step")),
        first_bad=_int(metrics.get("first_bad_step")),
        signal=evidence.signal,
        from_start=bool(metrics.get("from_start")),
    )


def _change(seen: Seen) -> str:
    """What the window saw move, as a sentence; empty when nothing did."""
    evidence = _window_evidence(seen)
    if evidence is None or not (evidence.metrics or {}).get("is_onset"):
        return ""
    return evidence.summary[:1].upper() + evidence.summary[1:] + ". "


def _weaken(finding: Finding, conditional: Iterable[str]) -> Finding:
    """A dependent conclusion on an open or waived layer is never of high confidence."""
    if finding.independent or finding.confidence != "high" or not tuple(conditional):
        return finding
    return finding.model_copy(update={"confidence": "medium"})


def _notes(layers: Sequence[Layer], checks: Sequence[CheckResult], seen: Seen) -> Iterable[str]:
    read = {(c.layer, c.check) for c in checks if c.outcome != "not_reached"}
    for layer in layers:
        for check in layer.checks:
            if (layer.id, check.id) in read:
                yield from (fill(n.say, seen) for n in check.notes if all_hold(n.when, seen))


def _not_checked(
    by_check: Mapping[tuple[str, str], Check],
    checks: Sequence[CheckResult],
    seen: Seen,
    ask: Ask,
) -> Iterable[NotChecked]:
    """Checks that were not read or decided nothing: why, and what would decide them."""
    for result in checks:
        if result.outcome not in ("not_reached", "inconclusive"):
            continue
        asked: Sequence[Request] = ()
        if result.outcome == "inconclusive" and result.reason != "tool_error":
            check = by_check[result.layer, result.check]
            asked = requests_of(
                check, seen, layer=result.layer, framework=ask.framework, run=ask.run
            )
        yield NotChecked(
            layer=result.layer,
            check=result.check,
            why=why_undecided(result),
            needs="; ".join(request.need for request in asked),
        )


def _requests(
    by_check: Mapping[tuple[str, str], Check],
    checks: Sequence[CheckResult],
    seen: Seen,
    ask: Ask,
    unanswered: Sequence[Open],
    leading: Finding | None,
    failed: Sequence[str],
) -> Iterable[Request]:
    """What would close an open layer, settle the complaint, or make the leading finding surer.

    A layer that has failed is decided: its other checks ask for nothing.
    """
    wanted = {
        name
        for o in unanswered
        for name in (o.unread or (() if o.claim.request else o.claim.answered_by))
    }
    for result in checks:
        check = by_check[result.layer, result.check]
        open_ = result.outcome == "inconclusive" and result.required and result.layer not in failed
        if leading is not None and (result.layer, result.check) == (leading.layer, leading.check):
            open_ = result.strength not in ("direct", "certified") and _lacks(check, seen)
        if open_ or f"{result.layer}.{result.check}" in wanted:
            yield from requests_of(
                check, seen, layer=result.layer, framework=ask.framework, run=ask.run
            )
    for each in unanswered:
        yield from request_of(each, ask.run)


def _lacks(check: Check, seen: Seen) -> bool:
    """Whether the check names evidence that the run lacks."""
    asks = () if isinstance(check.request, str) else check.request
    return any(ask.unless and not all_hold(ask.unless, seen) for ask in asks)


def _requests_beyond(
    loaded: Loaded,
    by_check: Mapping[tuple[str, str], Check],
    checks: Sequence[CheckResult],
    seen: Seen,
    ask: Ask,
) -> Iterable[Request]:
    """What could still show the cause where no layer is open.

    Checks that decided nothing come first, then those that passed on weaker evidence, then what the
    playbook asks for in the end.
    """
    undecided = [r for r in checks if r.outcome == "inconclusive"]
    weak = [r for r in checks if r.outcome == "pass" and r.strength not in ("direct", "certified")]
    for group in (undecided, weak):
        found = [
            request
            for r in group
            if r.layer != "window"
            for request in requests_of(
                by_check[r.layer, r.check],
                seen,
                layer=r.layer,
                framework=ask.framework,
                run=ask.run,
            )
        ]
        if found:
            return found
    return [_asked(loaded.playbook.otherwise, ask)] if loaded.playbook.otherwise else []


def _asked(what: Otherwise, ask: Ask) -> Request:
    command = what.command.replace("RUN", shlex.quote(ask.run))
    return Request(layer="window", need=what.need, command=command, decides=what.decides)


def _rests_on(checks: Sequence[CheckResult]) -> str:
    """Names the layers that nothing measured in the run vouches for; empty when there are none."""
    strong = {
        c.layer for c in checks if c.outcome == "pass" and c.strength in ("direct", "certified")
    }
    weak = {c.layer for c in checks if c.outcome == "pass" and c.required} - strong - {"window"}
    named = [name for name in dict.fromkeys(c.layer for c in checks) if name in weak]
    if not named:
        return ""
    layers = ", ".join(f"`{name}`" for name in named)
    return f" No direct evidence in {layers}: passed on settings or logged figures alone."


def _resume_from(onset: Onset, checkpoint_steps: Sequence[int]) -> str | None:
    """Last checkpoint saved before the first bad step was trained on."""
    if onset.first_bad is None or onset.from_start:
        return None
    earlier = [step for step in checkpoint_steps if step < onset.earliest]
    return f"checkpoint-{max(earlier)}" if earlier else None


def _least_bad(onset: Onset, checkpoint_steps: Sequence[int]) -> LeastBad | None:
    """The earliest checkpoint that carries the fault, where none is earlier than the fault."""
    if onset.first_bad is None or onset.from_start or _resume_from(onset, checkpoint_steps):
        return None
    later = [step for step in checkpoint_steps if step >= onset.first_bad]
    if not later:
        return None
    saved = min(later)
    bad_until = saved if onset.last_bad is None else min(saved, onset.last_bad)
    fewest = max(bad_until - onset.first_bad + 1, 0)
    most = bad_until - int(onset.earliest) + 1
    return LeastBad(
        checkpoint=f"checkpoint-{saved}",
        updates=fewest,
        updates_most=most if most > fewest else None,
    )


def _int(value: bool | int | float | None) -> int | None:
    return None if value is None else int(value)
