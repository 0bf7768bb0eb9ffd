"""What the record holds: evidence, rollouts side by side, findings beside the leading one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firstbad.agent.memo.caveats import refutation, role
from firstbad.agent.memo.sources import reads
from firstbad.agent.memo.tables import grid
from firstbad.agent.memo.text import brief, cut, one_line, tool_command
from firstbad.agent.memo.view import EvidenceView, FindingView, Pair, Side
from firstbad.agent.memo.words import Row, blocker, step
from firstbad.playbooks.results import Finding, Verdict
from firstbad.tools.evidence import Evidence, Scalar, Table
from firstbad.tools.numbers import is_step, number
from firstbad.tools.run import Run
from firstbad.tools.window.rollout_text import rollouts_beside

READS_TEXT = "read_rollouts"
"""The tool whose table holds rollouts before and after."""
BOTH_SIDES = ("compare_states", "classify_reproduction", "compare_phases")
"""Tools whose tables are shown whatever led: what was captured, where reruns fail, and both sides
of what happened."""
ROLLOUT = 1200
"""Longest rollout shown."""
PAIRS = 4
"""Pairs of rollouts shown."""
SIDES = ("before", "first"), ("after", "last")
"""Beginnings of the columns with text, of the earlier and of the later side."""
ALL_ROWS = 200
"""Rows of a table in the list of evidence (HTML)."""


def both_sides(evidence: Mapping[str, Evidence]) -> tuple[str, ...]:
    """Ids of the evidence on both sides of the change."""
    return tuple(id_ for id_, e in evidence.items() if e.tool in BOTH_SIDES and e.tables)


def focus(verdict: Verdict, evidence: Mapping[str, Evidence]) -> tuple[str, ...]:
    """Ids of the evidence that the leading finding cites, or that left a layer open."""
    leading = verdict.leading
    if leading is None:
        closed_at = blocker(verdict.layers)
        if closed_at is None:
            return verdict.left_open_by
        open_ = [c for c in verdict.checks if c.layer == closed_at and c.outcome == "inconclusive"]
        return tuple(dict.fromkeys(id_ for c in open_ for id_ in c.evidence))
    failed = [c for c in verdict.checks if c.layer == leading.layer and c.outcome == "fail"]
    failed.sort(key=lambda c: c.check != leading.check)
    return tuple(dict.fromkeys([*leading.supports, *(id_ for c in failed for id_ in c.evidence)]))


def focus_title(verdict: Verdict) -> str:
    """Heading over that evidence."""
    if verdict.leading is not None:
        return f"Evidence for `{verdict.leading.layer}`"
    closed_at = blocker(verdict.layers)
    if closed_at:
        return f"Evidence so far for `{closed_at}`"
    return "What is open, and both sides" if verdict.requests else "Both sides of what happened"


def pairs(
    verdict: Verdict, evidence: Mapping[str, Evidence], run: Run | None, cited: Sequence[str]
) -> tuple[tuple[Pair, ...], str]:
    """Rollouts side by side: around the onset of the leading finding, else as they were read."""
    around = _around_onset(verdict, run)
    if around is not None and (at := _before_after(around)) is not None:
        made = [_pair(around, row, *at) for row in around.rows]
        return tuple(made[:PAIRS]), _sentence(around.title)
    return _read_pairs(evidence, cited)


def _around_onset(verdict: Verdict, run: Run | None) -> Table | None:
    """The last rollouts before the leading finding's onset and the first ones with the fault."""
    onset = verdict.first_bad
    if verdict.leading is None or run is None or onset.from_start or onset.first_bad is None:
        return None
    before = onset.bracket_start if onset.is_bracket else None
    return rollouts_beside(
        run, onset.first_bad - 1 if before is None else before, onset.first_bad, PAIRS
    )


def _read_pairs(
    evidence: Mapping[str, Evidence], cited: Sequence[str]
) -> tuple[tuple[Pair, ...], str]:
    """Rollouts side by side, from the evidence that read them."""
    found = [e for e in evidence.values() if e.tool == READS_TEXT and e.tables]
    found.sort(key=lambda e: e.id not in cited)
    made: list[Pair] = []
    total = 0
    for one in found:
        for table in one.tables:
            at = _before_after(table)
            if at is None:
                continue
            total += len(table.rows) + table.cut_rows
            made += (_pair(table, row, *at) for row in table.rows)
    if not made:
        return (), ""
    note = f"{_sentence(found[0].tables[0].title)} {found[0].id}: {found[0].summary}"
    if total > len(made[:PAIRS]):
        note += f"; {number(len(made[:PAIRS]))} of {number(total)} pairs shown"
    return tuple(made[:PAIRS]), note


def _sentence(title: str) -> str:
    return f"{title[:1].upper()}{title[1:]}."


def _before_after(table: Table) -> tuple[list[int], list[int]] | None:
    """Columns with text of both sides (before and after, first and last), when it has both."""
    names = [name.lower() for name in table.columns]
    before = [i for i, name in enumerate(names) if name.startswith(SIDES[0])]
    after = [i for i, name in enumerate(names) if name.startswith(SIDES[1])]
    texts = all(isinstance(row[i], str | None) for row in table.rows for i in (*before, *after))
    return (before, after) if before and after and texts else None


def _pair(table: Table, row: Sequence[Scalar], before: list[int], after: list[int]) -> Pair:
    rest = [
        f"{name}: {brief(number(row[i], step=is_step(name)), 120)}"
        for i, name in enumerate(table.columns)
        if i not in (*before, *after)
    ]

    def side(places: list[int], names: tuple[str, ...]) -> Side:
        heading = table.columns[places[0]].lower()
        name = next(n for n in names if heading.startswith(n))
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

    return Pair("; ".join(rest), (side(before, SIDES[0]), side(after, SIDES[1])))


def other_finding(finding: Finding, verdict: Verdict) -> FindingView:
    """A finding beside the leading one, and what it is to it."""
    return FindingView(
        cause=finding.cause,
        claim=finding.claim,
        role=role(finding, verdict),
        remedy=finding.remedy,
        supports=", ".join(finding.supports),
        refuted_by=refutation(finding.refuted_by) if finding.refuted_by else "",
        experiment=finding.experiment.told() if finding.experiment else "",
    )


def evidence_view(found: Evidence, verdict: Verdict) -> EvidenceView:
    """One piece of evidence, with what recomputes it."""
    window = found.window
    onset = verdict.first_bad
    around = None if onset.from_start else onset.first_bad
    is_bad = verdict.outcome == "incident"
    pairs_only = found.tool == READS_TEXT
    tables = [t for t in found.tables if t.rows and not (pairs_only and _before_after(t))]
    return EvidenceView(
        id=found.id,
        tool=found.tool,
        status=found.status.replace("_", " "),
        origin=found.origin,
        summary=found.error or found.summary,
        signal=found.signal,
        settings=", ".join(_setting(name, value) for name, value in found.args.items()),
        steps=f"{step(window.first)} to {step(window.last)}" if window else "",
        metrics=tuple(
            Row(name, number(value, step=is_step(name)))
            for name, value in (found.metrics or {}).items()
        ),
        focus_grids=tuple(
            grid(table, around, is_bad=is_bad, most=_most(found, table)) for table in tables
        ),
        grids=tuple(grid(table, around, is_bad=is_bad, most=ALL_ROWS) for table in tables),
        reads=reads(found.sources),
        # A judge's answers and the path of code lie with the incident: only there is it measured
        # again with them.
        command=f"firstbad verify {one_line(verdict.incident)}"
        if any(source.kind in ("judge", "code") for source in found.sources)
        else one_line(tool_command(found.tool, verdict.run, found.args)),
    )


def _most(found: Evidence, table: Table) -> int:
    """Rows that are shown where the evidence is told in full."""
    if found.tool in BOTH_SIDES:
        return 30
    return 10 if is_step(table.columns[0]) else 8


def _setting(name: str, value: Scalar) -> str:
    shown = brief(number(value, step=is_step(name)), 200)
    return f"{name}={shown}" if shown else f"{name} empty"
