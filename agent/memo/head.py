"""The first screen: what happened, what to do now, what a reader must know before acting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from firstbad.agent.memo.text import LONGEST, brief, one_line
from firstbad.agent.memo.view import RequestView, Row
from firstbad.agent.memo.words import blocker, names, step
from firstbad.playbooks.model import Cause
from firstbad.playbooks.results import Finding, NotChecked, Onset, Request, Verdict
from firstbad.tools.evidence import Evidence
from firstbad.tools.numbers import number

WEAK = ("differential", "proxy", "declared")
"""Strengths that leave something open."""


def facts(verdict: Verdict, leading: Finding | None) -> Iterable[Row]:
    """The few figures under the headline."""
    onset = verdict.first_bad
    if leading is not None:
        if onset.from_start:
            yield Row("first bad step", "from the start")
        elif onset.sampled and onset.bracket_start is not None and onset.first_bad is not None:
            yield Row(
                "first bad step", f"after {step(onset.bracket_start)}, by {step(onset.first_bad)}"
            )
        else:
            yield Row(
                "first bad step", "not dated" if onset.first_bad is None else step(onset.first_bad)
            )
        yield Row("last good", number(onset.last_good, step=True))
    elif onset.first_bad is not None:
        yield Row("first change", step(onset.first_bad))
    yield Row(
        "you noticed",
        "not said" if verdict.noticed_step is None else step(verdict.noticed_step),
    )
    if leading is not None:
        yield Row("confidence", leading.confidence)
    yield Row("window", verdict.window.replace("_", " "))
    if leading is not None or verdict.conditional_on:
        yield Row("conditional on", ", ".join(verdict.conditional_on) or "nothing")


def actions(
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
    until = f"; last step seen {step(seen)}" if seen is not None else ""
    if any((e.metrics or {}).get("ended") is True for e in evidence.values()):
        since = (
            ""
            if onset.first_bad is None or onset.from_start
            else f" from step {step(onset.first_bad)} on"
        )
        at = f" at step {step(seen)}" if seen is not None else ""
        return f"training has ended{at}: use no checkpoint{since}"
    if onset.from_start:
        return f"the run, if it still trains: every step carries the fault{until}"
    if onset.first_bad is None:
        return f"the run, if it still trains; the fault could not be dated{until}"
    since = step(onset.first_bad)
    if onset.sampled and onset.bracket_start is not None:
        return (
            f"the run, if it still trains: every step from {since} on carries the fault, "
            f"those after {step(onset.bracket_start)} may{until}"
        )
    return f"the run, if it still trains: every step from {since} on carries the fault{until}"


def _resume(verdict: Verdict, onset: Onset) -> str:
    if onset.from_start:
        return "start again: there is no good step to go back to"
    if verdict.resume_from is None:
        return (
            "no checkpoint before the first bad step was found; start again, "
            "or from one kept elsewhere"
        )
    at = ""
    if onset.sampled and onset.bracket_start is not None:
        at = f" that is not after step {step(onset.bracket_start)}"
    elif onset.first_bad is not None:
        at = f" before step {step(onset.first_bad)}"
    return f"from `{one_line(verdict.resume_from)}`, the last checkpoint{at}"


def caveats(verdict: Verdict, leading: Finding | None, cause: Cause | None) -> Iterable[Row]:
    """What a reader must know before acting."""
    if leading is not None and leading.first_bad.signal:
        yield Row("dated by", leading.first_bad.signal)
    for waiver in verdict.waivers:
        yield Row("waived", f"layer `{waiver.layer}`: {waiver.reason}")
    if leading is not None:
        if refuted := leading.refuted_by or (cause.refuted_by if cause else ""):
            yield Row("would refute it", refuted)
        reached = {r.id for r in verdict.layers if r.outcome != "not_reached"}
        if leading.independent and leading.layer not in reached:
            place = f"{leading.layer}.{leading.check}"
            yield Row("rests on", f"`{place}`, an independent fact: it needs no layer before it")
        if leading.origin != "gate":
            yield Row("origin", f"proposed by {leading.origin}, not by a gate")
    closed = [r.id for r in verdict.layers if r.outcome == "not_reached"]
    if closed:
        closed_at = blocker(verdict.layers)
        because = f" (not interpretable while `{closed_at}` is not passed)" if closed_at else ""
        yield Row("not checked", f"{names(closed)}{because}")
    elif verdict.not_checked:
        yield Row("not checked", names([f"{n.layer}.{n.check}" for n in verdict.not_checked]))
    else:
        yield Row("not checked", "nothing that the playbook asks for")


def request(asked: Request) -> RequestView:
    """Evidence to get, and how; a text with backticks is prose, any other a command."""
    prose = "`" in asked.command
    return RequestView(
        layer=asked.layer,
        need=asked.need,
        command="" if prose else brief(asked.command, LONGEST),
        advice=asked.command if prose else "",
        decides=asked.decides,
    )


def not_checked(items: Sequence[NotChecked]) -> Iterable[Row]:
    """What was not read, checks with the same reason in one row."""
    by_why: dict[str, list[str]] = {}
    for item in items:
        by_why.setdefault(item.why, []).append(f"{item.layer}.{item.check}")
    return (Row(names(places), why) for why, places in by_why.items())


def weak_passes(verdict: Verdict) -> Iterable[Row]:
    """Passes by less than direct evidence, with what they do not exclude."""
    for result in verdict.layers:
        if result.outcome != "pass" or result.strength not in WEAK:
            continue
        open_ = dict.fromkeys(
            c.excludes_not for c in verdict.checks if c.layer == result.id and c.excludes_not
        )
        what = "; ".join(open_) or "the playbook does not say what this leaves open"
        yield Row(f"{result.id} ({result.strength})", what)
