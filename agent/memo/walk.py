"""The walk: layers, checks and clauses, with what closed the way."""

from __future__ import annotations

from collections.abc import Iterable

from firstbad.agent.memo.text import brief, operands
from firstbad.agent.memo.view import CheckView, ClauseView, LayerView
from firstbad.agent.memo.words import blocker, names, read_all_the_same
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.results import CheckResult, Clause, Verdict
from firstbad.tools.numbers import is_step, number

WHY, WHY_NOT = 220, 1200
"""Longest reason in the table of layers, of a pass and of anything else; more stands below."""

_CONDITIONS = {
    "needs": {True: "met", False: "not met", None: "not observed"},
    "fail_if": {True: "broken", False: "holds", None: "not observed"},
    "doubt_if": {True: "doubtful", False: "holds", None: "not observed"},
    "looked_for": {True: "met", False: "not met", None: "not observed"},
}
_PHRASES = {
    "needs": "needs",
    "fail_if": "fails if",
    "doubt_if": "in doubt if",
    "looked_for": "looked for",
}


def layers(verdict: Verdict, loaded: Loaded) -> Iterable[LayerView]:
    """Every layer with its checks, in the order of the walk."""
    asked = {layer.id: layer for layer in loaded.playbook.layers}
    closed_at = blocker(verdict.layers)
    for result in verdict.layers:
        layer = asked.get(result.id)
        asks = {c.id: c.asks for c in layer.checks} if layer else {}
        reached = result.outcome != "not_reached"
        why = result.reason
        if not reached:
            facts = read_all_the_same(result, verdict.checks)
            why = f"`{closed_at}` has not passed" + (f"; {facts}" if facts else "")
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
            closes=result.id == closed_at,
            is_open=result.id == closed_at
            or any(c.layer == result.id and c.outcome == "fail" for c in verdict.checks),
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
        lacks_data=result.outcome == "inconclusive"
        and result.reason == "evidence_missing"
        and all(c.observed is None for c in result.clauses),
    )


def _message(result: CheckResult) -> str:
    if result.reason == "tool_error":
        return f"the tool broke: {result.message}"
    if result.blocked_by:
        return f"not read: needs {names(result.blocked_by)}"
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
