"""Findings: a failed check becomes a cause with its onset, and one of them leads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from firstbad.playbooks.causes import causes
from firstbad.playbooks.fill import fill
from firstbad.playbooks.gate import Seen, all_hold, observe
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.model import Check, Pointer
from firstbad.playbooks.results import CheckResult, Confidence, Finding, LayerResult, Onset
from firstbad.tools.code import PLACES
from firstbad.tools.evidence import Evidence
from firstbad.tools.records.known_faults import FAULTS, MET

LOWER: dict[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}
NOT_EXCLUDED = "nothing here excludes what would refute it"
UNLISTED = "what was measured fits no cause of the list"
WEAK: dict[str, str] = {
    "proxy": "it rests on logged figures that only follow from the fault",
    "declared": "it rests on settings, not on a measurement",
    "differential": "it rests on a comparison of runs",
}
STILL_GOING = "nothing measured here dates it"


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
    ordered = order_findings(loaded, with_record(merge_findings(found), seen), layers)
    return with_effects(loaded, ordered, {(c.layer, c.check): c.message for c in checks})


def build_finding(check: Check, result: CheckResult, seen: Seen) -> Finding:
    """The finding of a failed check: the first pointer whose bounds all hold."""
    pointer = next((p for p in check.points_to if all_hold(p.when, seen)), None)
    if pointer is None:
        pointer = Pointer(
            cause="other.unlisted", claim=result.message or check.asks, confidence="low"
        )
    cause = causes()[pointer.cause]
    form = next((f for f in cause.forms if all_hold(f.when, seen)), cause)
    broken = [c.evidence for c in result.clauses if c.role == "fail_if" and c.held and c.evidence]
    named = [seen[m.split(".", 1)[0]].id for m in pointer.when if m.split(".", 1)[0] in seen]
    against = [
        seen[measure.split(".", 1)[0]].id
        for measure, bound in pointer.contradicted_if.items()
        if bound.holds(observe(seen, measure)) is True
    ]
    onset = _onset_of(check, pointer, seen)
    confidence, why = pointer.confidence, list[str]()
    if confidence != "high":
        why.append(UNLISTED if cause.id == "other.unlisted" else NOT_EXCLUDED)
    if against:
        confidence = LOWER[confidence]
        why.append(f"{' and '.join(dict.fromkeys(against))} speaks against it")
    if result.strength in ("proxy", "declared", "differential"):
        confidence = LOWER[confidence]
        why.append(WEAK[result.strength])
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
        confidence_because="; ".join(why),
        refuted_by=fill(pointer.refuted_by or form.refuted_by or cause.refuted_by, seen),
        experiment=pointer.experiment or form.experiment or cause.experiment,
        remedy=fill(pointer.remedy or form.remedy or cause.remedy, seen),
        verify=fill(pointer.verify or form.verify or cause.verify, seen),
        remedy_kind=pointer.remedy_kind or cause.remedy_kind,
        dilutes=pointer.dilutes or cause.dilutes,
        weights=pointer.weights or cause.weights,
        rollback=pointer.rollback or form.rollback or cause.rollback,
        log_next=form.log_next or cause.log_next,
        ruled_out=tuple(
            fill(text, seen) for text, bounds in pointer.ruled_out.items() if all_hold(bounds, seen)
        ),
        independent=not check.depends_on,
    )


def _ended(onset: Onset) -> str:
    """That a fault ended, as a sentence; empty where it goes on, or its end is not known."""
    if onset.last_bad is None:
        return ""
    if onset.sampled:
        return f" It was over by step {onset.last_bad + 1}."
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
                "confidence_because": surer.confidence_because,
                "supports": tuple(dict.fromkeys([*other.supports, *finding.supports])),
                "contradicts": tuple(dict.fromkeys([*other.contradicts, *finding.contradicts])),
                "ruled_out": tuple(dict.fromkeys([*other.ruled_out, *finding.ruled_out])),
                "independent": other.independent or finding.independent,
            }
        )
    return list(merged.values())


def with_record(findings: Sequence[Finding], seen: Seen) -> list[Finding]:
    """Findings, supported by what names their cause beside the run's own evidence.

    That is a fault on record for the version that ran, or a place in the code that was given. It
    makes no finding, and none surer: it only stands beside the evidence.
    """
    on_record = [
        (evidence.id, row[0])
        for evidence in {e.id: e for e in seen.values()}.values()
        for table in evidence.tables
        for row in table.rows
        if (evidence.tool, table.title) == ("check_known_faults", FAULTS)
        and row[2] == MET
        or (evidence.tool, table.title) == ("read_loss_code", PLACES)
    ]
    return [
        f.model_copy(
            update={
                "supports": tuple(
                    dict.fromkeys([*f.supports, *(i for i, cause in on_record if cause == f.cause)])
                ),
            }
        )
        for f in findings
    ]


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
    upstream = [
        f
        for f in findings
        if f is not leader and _leads_to(loaded, f, leader) and _when(f) < float("inf")
    ]
    leader = min(upstream, key=_when, default=leader)
    rest = [f for f in findings if f.id != leader.id]
    numbered = [leader, *sorted(rest, key=_when)]
    names = {f.id: f"F{i}" for i, f in enumerate(numbered, 1)}
    return [f.model_copy(update={"id": names[f.id]}) for f in numbered]


def with_effects(
    loaded: Loaded, findings: Sequence[Finding], said: Mapping[tuple[str, str], str]
) -> list[Finding]:
    """Findings; those that an earlier one of them brings about, by `leads_to`, as its effects.

    An effect has no cause and no remedy of its own: what is told of it is what its check measured,
    `said` by layer and check.
    """
    found: list[Finding] = []
    for finding in findings:
        latest = finding.first_bad.latest  # one of a bracket need not have begun before
        of = next((f for f in found if _linked(loaded, f, finding) and _when(f) <= latest), None)
        if of is not None:
            told = said.get((finding.layer, finding.check)) or finding.claim
            finding = finding.model_copy(
                update={
                    "mechanism_of": of.id,
                    "claim": f"An effect of `{of.cause}`: {told}",
                    "confidence": "low",
                    "confidence_because": "it may follow from the finding before it alone",
                    "remedy": f"none of its own; it goes with `{of.cause}`",
                    "verify": f"`{finding.layer}.{finding.check}` passes",
                    "refuted_by": f"the same measure once `{of.cause}` is mended",
                    "ruled_out": (),
                }
            )
        found.append(finding)
    return found


def _leads_to(loaded: Loaded, first: Finding, second: Finding) -> bool:
    """Whether the playbook links a finding to another one that did not begin before it."""
    return _when(first) <= _when(second) and _linked(loaded, first, second)


def _linked(loaded: Loaded, first: Finding, second: Finding) -> bool:
    places = {second.layer, f"{second.layer}.{second.check}"}
    return any(
        link.names(first.cause) and not places.isdisjoint(link.to)
        for link in loaded.playbook.leads_to
    )


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
    spoken = _dated(pointer.dated_by(tuple(check.evidence)), seen)
    for evidence in spoken if spoken or pointer.onset else _dated(check.evidence, seen):
        metrics = evidence.metrics or {}
        first = metrics["first_bad_step"]
        if first is None and not metrics.get("from_start"):
            continue
        onset = Onset(
            last_good=_last_good(metrics),
            first_bad=_int(first),
            signal=evidence.signal or evidence.tool,
            sampled=bool(metrics.get("sampled")),
            quiet=_int(metrics.get("quiet_step")),
            from_start=bool(metrics.get("from_start")),
            last_bad=_int(metrics.get("last_bad_step")),
        )
        return onset if metrics.get("gradual") else _narrow(onset, seen)
    return Onset(last_good=None, first_bad=None, signal=STILL_GOING)


def _dated(aliases: Iterable[str], seen: Seen) -> list[Evidence]:
    """Evidence of tools that can say when something began."""
    return [seen[a] for a in aliases if a in seen and "first_bad_step" in (seen[a].metrics or {})]


def _narrow(onset: Onset, seen: Seen) -> Onset:
    """A bracket between two samples ends at the first per-step signal that moved in it.

    It does not begin there: what a fault does to a signal may take some steps.
    """
    window = window_evidence(seen)
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
    told = (
        f"{signal}, the first to move between step {low} and step {onset.first_bad}, where "
        f"{onset.signal} went bad"
    )
    return onset.model_copy(update={"first_bad": step, "signal": told})


def window_evidence(seen: Seen) -> Evidence | None:
    """What was measured of the first change, or None."""
    return next((e for e in seen.values() if e.tool == "find_first_bad" and e.metrics), None)


def window_onset(seen: Seen) -> Onset:
    """The step at which a signal left its band first."""
    evidence = window_evidence(seen)
    metrics = evidence.metrics if evidence else None
    if evidence is None or metrics is None:
        return Onset(last_good=None, first_bad=None, signal="no signal can be read")
    return Onset(
        last_good=_last_good(metrics),
        first_bad=_int(metrics.get("first_bad_step")),
        signal=evidence.signal,
        from_start=bool(metrics.get("from_start")),
    )


def _last_good(metrics: Mapping[str, bool | int | float | None]) -> int | None:
    """None as well where it is bad from the start: then no step is known to be good."""
    return None if metrics.get("from_start") else _int(metrics.get("last_good_step"))


def weaken(finding: Finding, conditional: Iterable[str]) -> Finding:
    """A dependent conclusion on an open or waived layer is never of high confidence."""
    names = tuple(conditional)
    if finding.independent or finding.confidence != "high" or not names:
        return finding
    open_ = f"{' and '.join(f'`{name}`' for name in names)} did not pass, and it rests on that"
    return finding.model_copy(update={"confidence": "medium", "confidence_because": open_})


def doubt_weights(finding: Finding, open_layers: Iterable[str]) -> Finding:
    """Behind an open or waived layer nothing clears the weights: it may hide what spoils them."""
    names = " and ".join(f"`{name}`" for name in open_layers)
    if finding.weights != "sound" or not names:
        return finding
    rollback = f"not decided: {names} did not pass, and may hide what spoils the weights"
    return finding.model_copy(update={"weights": "unclear", "rollback": rollback})


def _int(value: bool | int | float | None) -> int | None:
    return None if value is None else int(value)
