"""What to know before acting: other findings, what would refute or settle it, an example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firstbad.agent.memo.code_rows import in_code
from firstbad.agent.memo.text import brief
from firstbad.agent.memo.words import Row, onset_text, step
from firstbad.playbooks.model import Cause
from firstbad.playbooks.results import Finding, Onset, Verdict
from firstbad.tools.evidence import Evidence

ALSO = 800
"""Longest text of another finding."""
CELL = 80
"""Most characters of one cell of the example."""
TICK, QUOTE = "`", "'"
"""A cell stands between ticks: its own ones become quotes."""


def caveats(
    verdict: Verdict,
    leading: Finding | None,
    cause: Cause | None,
    evidence: Mapping[str, Evidence],
) -> Iterable[Row]:
    """What a reader must know before acting."""
    for waiver in verdict.waivers:
        yield Row("waived", f"layer `{waiver.layer}`: {waiver.reason}")
    for other in verdict.findings[1:] if leading else verdict.findings:
        yield Row(
            "also found", brief(f"`{other.cause}`, {role(other, verdict)}: {other.claim}", ALSO)
        )
    yield from in_code(verdict.findings, evidence)
    if leading is None:
        return
    if refuted := leading.refuted_by or (cause.refuted_by if cause else ""):
        yield Row("would refute it", refutation(refuted))
    if leading.experiment:
        yield Row("would settle it", leading.experiment.told())
    if example := _example(leading, evidence):
        yield Row("for example", example)
    if leading.first_bad.signal:
        yield Row("dated by", leading.first_bad.signal + _moved_before(leading.first_bad, evidence))
    reached = {r.id for r in verdict.layers if r.outcome != "not_reached"}
    if leading.independent and leading.layer not in reached:
        place = f"{leading.layer}.{leading.check}"
        yield Row("rests on", f"`{place}`, an independent fact: it needs no layer before it")
    if leading.origin != "gate":
        yield Row("origin", f"proposed by {leading.origin}, not by a gate")


def _example(leading: Finding, evidence: Mapping[str, Evidence]) -> str:
    """One row of what the finding rests on, the first with text from its onset on; else empty."""
    first = leading.first_bad.earliest
    for id_ in leading.supports:
        for table in evidence[id_].tables if id_ in evidence else ():
            for row in table.rows if table.columns[0] == "step" else ():
                told = [
                    f"{name} `{brief(cell, CELL).replace(TICK, QUOTE)}`"
                    for name, cell in zip(table.columns[1:], row[1:], strict=True)
                    if isinstance(cell, str) and cell
                ]
                if told and isinstance(row[0], int) and row[0] >= first:
                    return f"step {step(row[0])}: {'; '.join(told)} ({id_})"
    return ""


def _moved_before(onset: Onset, evidence: Mapping[str, Evidence]) -> str:
    """That a signal had moved before a finding began, which two numbers would leave a riddle."""
    window = next((e for e in evidence.values() if e.tool == "find_first_bad" and e.metrics), None)
    first = window.metrics.get("first_bad_step") if window and window.metrics else None
    if window is None or first is None or not first < onset.earliest < float("inf"):
        return ""
    named = f"`{window.signal}`" if window.signal else "a signal"
    at = step(int(first))
    return f"; {named} left its band at step {at} already, which this finding does not explain"


def role(finding: Finding, verdict: Verdict) -> str:
    """What another finding is to the leading one, where it lies and since when."""
    leading = verdict.leading
    if leading is not None and finding.mechanism_of == leading.id:
        what = "mechanism of the leading finding"
    elif finding.mechanism_of:
        of = next(f.cause for f in verdict.findings if f.id == finding.mechanism_of)
        what = f"mechanism of `{of}`"
    else:
        unread = {r.id for r in verdict.layers if r.outcome == "not_reached"}
        is_fact = finding.independent or finding.layer in unread
        what = "independent fact" if is_fact else "further finding"
    onset = onset_text(finding.first_bad)
    return f"{what}, layer `{finding.layer}`, confidence {finding.confidence}, {onset}"


def refutation(refuted_by: str) -> str:
    """What would refute a finding, as a sentence."""
    return f"This would be refuted by {refuted_by.rstrip('.')}."
