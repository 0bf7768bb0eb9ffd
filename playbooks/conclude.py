"""Conclude: from judged layers and checks to findings, the leading one, and the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from firstbad.playbooks.applicability import Reasons, inapplicable, is_optional
from firstbad.playbooks.checkpoints import (
    least_bad_of,
    passed_over,
    resume_from,
    unfit_checkpoints,
)
from firstbad.playbooks.complaints import (
    QUESTIONS,
    Open,
    answers_to,
    claims_made,
    general_answer,
    left_open,
    request_of,
    unjudged,
)
from firstbad.playbooks.fill import fill
from firstbad.playbooks.findings import (
    doubt_weights,
    findings_of,
    weaken,
    window_evidence,
    window_onset,
)
from firstbad.playbooks.gate import Seen, all_hold, why_undecided
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.model import Check, Layer, Otherwise
from firstbad.playbooks.requests import RECORD, requests_of
from firstbad.playbooks.results import (
    CheckResult,
    Finding,
    LayerResult,
    NotChecked,
    Request,
    Usage,
    Verdict,
    Waiver,
    first_spoiled,
)
from firstbad.playbooks.walk import window_kind
from firstbad.tools.evidence import Record


class Ask(Record):
    """What was asked, of which run."""

    incident: str
    run: str
    framework: str
    recorded: bool = False
    """A flight recorder was there."""
    complaint: str = ""
    noticed_step: int | None = None
    symptoms: tuple[str, ...] = ()
    """What the complaint says, in the words of its grammar."""
    not_understood: str = ""
    """What of it was not understood, as a sentence; empty where all was."""

    @property
    def dialects(self) -> tuple[str, ...]:
        """What wrote the run, as texts of requests are named; the best way to get more first."""
        return (RECORD, self.framework) if self.recorded else (self.framework,)


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
    onset = window_onset(seen)
    claims = claims_made(book.complaints, ask.symptoms, seen, book.compared, named=ask.noticed_step)
    ruled_out = inapplicable(book.inapplicable, checks, seen)
    unanswered = left_open(claims, checks, ruled_out)
    unexplained = next((c for c in book.unexplained if all_hold(c.when, seen)), None)
    ended = next((e for e in book.ended if all_hold(e.when, seen)), None)
    how_ended = fill(ended.say, seen) if ended else ""
    unused = [w.layer for w in waivers if w.layer not in waived]
    about_step = book.about_step if ask.noticed_step is not None else ()
    leading = next(iter(findings), None)
    answers = list(answers_to(claims, about_step, checks, seen, leading, ruled_out))
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
    left_open_by: list[str] = []
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
        left_open_by = _evidence_of(unexplained.when, seen)
    elif unanswered:
        outcome = "undetermined"
        said = "; ".join(f"that {o.claim.says} ({o.why})" for o in unanswered)
        headline = f"No check failed, but what the complaint says is not answered: {said}."
        left_open_by = _evidence_of([o.claim.measure for o in unanswered], seen)
    elif window == "steady" or all_hold(book.outcome_holds, seen):
        outcome = "healthy"
        headline = "Every layer passed and no check failed."
        if ended is not None:
            headline = fill(ended.headline, seen)
        if waived:
            names = ", ".join(f"`{name}`" for name in waived)
            headline = f"As far as it was read, no check failed. Waived, not passed: {names}."
            headline += f" The run ended {how_ended}." if ended else ""
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
    if not answers and not QUESTIONS.isdisjoint(ask.symptoms):
        answers.append(general_answer(outcome))
    if ask.not_understood:
        answers.append(ask.not_understood)
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
                ruled_out,
                book.longer,
            )
        )
    )
    if unexplained is not None and outcome == "undetermined":
        requests = (_asked(unexplained, ask, unexplained.layer), *requests)
    if outcome == "undetermined" and not requests:
        requests = tuple(
            dict.fromkeys(_requests_beyond(loaded, by_check, checks, seen, ask, ruled_out))
        )
    conditional = (*waived, *(open_layers if findings else ()))
    findings = [doubt_weights(weaken(f, conditional), conditional) for f in findings]
    spoiler = first_spoiled(findings) if findings else None
    spoiled = spoiler.first_bad if spoiler else None
    unfit = unfit_checkpoints(seen)
    whole = [step for step in checkpoint_steps if step not in unfit]
    back_to = resume_from(spoiled, whole) if findings else None
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
        ended=how_ended,
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
            *_not_checked(by_check, checks, seen, ask, ruled_out, book.longer),
            *(NotChecked(layer=u.layer, check=u.check, why=u.why) for u in book.unbuilt),
        ),
        requests=requests,
        left_open_by=tuple(left_open_by),
        resume_from=back_to,
        passed_over=passed_over(unfit, spoiled, back_to) if spoiled else (),
        least_bad=least_bad_of(spoiled, whole) if spoiled else None,
        playbooks=(loaded.ref,),
        usage=usage,
        versions=dict(versions),
    )


def _evidence_of(measures: Iterable[str], seen: Seen) -> list[str]:
    """Ids of the evidence that `alias.field` measures, or bare aliases, are read from."""
    read = (seen.get(measure.partition(".")[0]) for measure in measures)
    return list(dict.fromkeys(evidence.id for evidence in read if evidence is not None))


def _change(seen: Seen) -> str:
    """What the window saw move, as a sentence; empty when nothing did."""
    evidence = window_evidence(seen)
    if evidence is None or not (evidence.metrics or {}).get("is_onset"):
        return ""
    return evidence.summary[:1].upper() + evidence.summary[1:] + ". "


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
    ruled_out: Reasons,
    longer: str,
) -> Iterable[NotChecked]:
    """Checks that were not read or decided nothing: why, and what would decide them."""
    for result in checks:
        if result.outcome not in ("not_reached", "inconclusive"):
            continue
        if because := ruled_out.get(f"{result.layer}.{result.check}"):
            yield NotChecked(
                layer=result.layer, check=result.check, why=because, kind="not_applicable"
            )
            continue
        asked: Sequence[Request] = ()
        if result.outcome == "inconclusive" and result.reason != "tool_error":
            check = by_check[result.layer, result.check]
            asked = requests_of(
                check, seen, layer=result.layer, dialects=ask.dialects, run=ask.run, longer=longer
            )
        yield NotChecked(
            layer=result.layer,
            check=result.check,
            why=why_undecided(result),
            needs="; ".join(request.need for request in asked),
            kind="optional" if is_optional(result) else "missing",
        )


def _requests(
    by_check: Mapping[tuple[str, str], Check],
    checks: Sequence[CheckResult],
    seen: Seen,
    ask: Ask,
    unanswered: Sequence[Open],
    leading: Finding | None,
    failed: Sequence[str],
    ruled_out: Reasons,
    longer: str,
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
        if f"{result.layer}.{result.check}" in ruled_out:
            continue
        check = by_check[result.layer, result.check]
        open_ = result.outcome == "inconclusive" and result.required and result.layer not in failed
        if leading is not None and (result.layer, result.check) == (leading.layer, leading.check):
            open_ = result.strength not in ("direct", "certified") and _lacks(check, seen)
        if open_ or f"{result.layer}.{result.check}" in wanted:
            yield from requests_of(
                check, seen, layer=result.layer, dialects=ask.dialects, run=ask.run, longer=longer
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
    ruled_out: Reasons,
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
            if r.layer != "window" and f"{r.layer}.{r.check}" not in ruled_out
            for request in requests_of(
                by_check[r.layer, r.check],
                seen,
                layer=r.layer,
                dialects=ask.dialects,
                run=ask.run,
                longer=loaded.playbook.longer,
            )
        ]
        if found:
            return found
    return [_asked(loaded.playbook.otherwise, ask)] if loaded.playbook.otherwise else []


def _asked(what: Otherwise, ask: Ask, layer: str = "window") -> Request:
    command = what.command.replace("RUN", shlex.quote(ask.run))
    return Request(layer=layer, need=what.need, command=command, decides=what.decides)


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
