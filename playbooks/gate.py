"""Gates: walk the alternatives, compare, and show both operands. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from firstbad.playbooks.model import Alternative, Bounds, Check
from firstbad.playbooks.results import CheckResult, Clause, Number, Outcome, Reason
from firstbad.tools.evidence import Evidence
from firstbad.tools.numbers import number

Seen = Mapping[str, Evidence]
"""Evidence by alias."""


def observe(seen: Seen, measure: str) -> Number | None:
    """The number that `alias.field` names, or None when it could not be had."""
    alias, name = measure.split(".", 1)
    evidence = seen.get(alias)
    return None if evidence is None or evidence.metrics is None else evidence.metrics.get(name)


def all_hold(bounds: Bounds, seen: Seen) -> bool:
    """Whether every bound is known to hold."""
    return all(bound.holds(observe(seen, measure)) is True for measure, bound in bounds.items())


def compare(
    bounds: Bounds, role: Literal["needs", "fail_if", "doubt_if"], seen: Seen
) -> tuple[Clause, ...]:
    """One clause per bound."""
    clauses = []
    for measure, bound in bounds.items():
        observed = observe(seen, measure)
        evidence = seen.get(measure.split(".", 1)[0])
        clauses.append(
            Clause(
                measure=measure,
                role=role,
                op=bound.op,
                limit=bound.limit,
                observed=observed,
                held=bound.holds(observed),
                evidence=evidence.id if evidence else None,
            )
        )
    return tuple(clauses)


def decide(alternative: Alternative, seen: Seen) -> tuple[Outcome, Reason, tuple[Clause, ...]]:
    """Outcome of one alternative whose needs hold."""
    clauses = compare(alternative.fail_if, "fail_if", seen)
    doubts = compare(alternative.doubt_if, "doubt_if", seen)
    shown = clauses + doubts
    if any(c.held for c in clauses):
        return "fail", "bound_broken", shown
    if any(c.held is None for c in clauses):
        return "inconclusive", "evidence_missing", shown
    if any(c.held is not False for c in doubts):
        return "inconclusive", "bound_doubtful", shown
    return "pass", "bounds_held", shown


def judge(
    check: Check, seen: Seen, *, playbook: str, layer: str, blocked_by: tuple[str, ...] = ()
) -> CheckResult:
    """Decide a check: the first alternative whose needs hold decides; none: inconclusive.

    `blocked_by` names what the check depends on that has not passed; then nothing is read.
    """
    used = tuple(seen[a].id for a in check.evidence if a in seen)
    clauses: tuple[Clause, ...] = ()
    missing: tuple[Clause, ...] = ()
    passed_over: tuple[Clause, ...] = ()
    outcome: Outcome = "inconclusive"
    reason: Reason = "evidence_missing"
    strength = None
    excludes_not = ""
    message = ""
    if blocked_by:
        outcome, reason = "not_reached", "depends_on_open"
        message = f"not read: depends on {', '.join(blocked_by)}"
    else:
        for alternative in check.gate:
            needs = compare(alternative.needs, "needs", seen)
            if not all(c.held is True for c in needs):
                lacks = tuple(c for c in needs if c.held is not True)
                # What is told is the alternative that was nearest to deciding.
                missing = lacks if not missing or len(lacks) < len(missing) else missing
                # What was looked for and not found: the bound that a later pass rests on.
                passed_over += tuple(
                    c.model_copy(update={"role": "looked_for"}) for c in needs if c.held is False
                )
                continue
            outcome, reason, shown = decide(alternative, seen)
            clauses = needs + shown
            compared = {c.measure for c in clauses}
            clauses += tuple(dict.fromkeys(c for c in passed_over if c.measure not in compared))
            strength, excludes_not = alternative.strength, alternative.excludes_not
            message = _explain(outcome, clauses, seen)
            if outcome == "pass" and (broken := _broken(check, seen)):
                # A weaker alternative must not pass what a broken tool could have failed.
                outcome, reason, message = "inconclusive", "tool_error", broken
            break
        else:
            clauses = missing
            if broken := _broken(check, seen):
                reason, message = "tool_error", broken
            else:
                said = [e.summary for a in check.evidence if (e := seen.get(a)) and not e.metrics]
                message = "; ".join(dict.fromkeys(said)) or _unmet(missing, seen)
    return CheckResult(
        playbook=playbook,
        layer=layer,
        check=check.id,
        outcome=outcome,
        strength=strength,
        required=check.passes,
        depends_on=check.depends_on,
        blocked_by=blocked_by,
        reason=reason,
        clauses=clauses,
        evidence=used,
        message=message,
        excludes_not=excludes_not if outcome == "pass" else "",
    )


def why_undecided(result: CheckResult) -> str:
    """Why a check decided nothing, without the figures that were measured on the way.

    Those stand among its clauses; beside "not checked" they would read like a result.
    """
    doubts = [c for c in result.clauses if c.role == "doubt_if" and c.held is True]
    unmet = [c for c in result.clauses if c.role == "needs" and c.held is False]
    if result.outcome != "inconclusive" or result.reason == "tool_error":
        return result.message or result.reason
    if doubts:
        bounds = " and ".join(_bound(c) for c in doubts)
        return f"in doubt: {bounds}, which neither passes nor names a fault"
    if unmet:
        return f"too little to decide: needs {' and '.join(_bound(c) for c in unmet)}"
    return result.message or result.reason


def _bound(clause: Clause) -> str:
    return f"`{clause.measure}` {clause.op} {number(float(clause.limit))}"


def _unmet(clauses: tuple[Clause, ...], seen: Seen) -> str:
    """What was measured for the conditions of the strongest alternative that do not hold.

    In the words of the tools; the conditions themselves stand among the clauses.
    """
    aliases = dict.fromkeys(c.measure.split(".", 1)[0] for c in clauses)
    said = dict.fromkeys(seen[a].summary for a in aliases if a in seen and seen[a].summary)
    if said:
        return f"not enough to decide: {'; '.join(said)}"
    return "nothing was measured for " + ", ".join(f"`{c.measure}`" for c in clauses)


def _broken(check: Check, seen: Seen) -> str:
    """What is said of the first tool of the check that broke; empty when none did."""
    found = (e for a in check.evidence if (e := seen.get(a)) and e.status == "error")
    return next((e.summary for e in found), "")


def _explain(outcome: Outcome, clauses: tuple[Clause, ...], seen: Seen) -> str:
    """What the evidence says that decided: all that was compared, or what did not hold up."""
    told = clauses
    if outcome != "pass":
        told = tuple(
            c for c in clauses if c.role in ("fail_if", "doubt_if") and c.held is not False
        )
    aliases = dict.fromkeys(c.measure.split(".", 1)[0] for c in told)
    said = (seen[a].summary for a in aliases if a in seen and seen[a].summary)
    return "; ".join(dict.fromkeys(said))
