"""The walk of a playbook over evidence: gather, judge, and what stays unread behind a closed layer.

The graph takes these steps one by one and saves between them; `verify` takes them all at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstbad.agent.evidence_store import EvidenceSource
from firstbad.playbooks.conclude import Ask, conclude
from firstbad.playbooks.findings import findings_of
from firstbad.playbooks.gate import judge as judge_check
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.model import Layer
from firstbad.playbooks.results import CheckResult, LayerResult, Usage, Verdict, Waiver
from firstbad.playbooks.walk import OPEN, blocked_by, judge_layer, layer_outcome, resolve_call
from firstbad.tools.evidence import Evidence

WIDE = 5
"""Steps of a bracket from which on its end does not part good steps from bad ones."""


@dataclass
class Trail:
    """How far a walk has come."""

    aliases: dict[str, str] = field(default_factory=dict)
    """The playbook's name of a piece of evidence -> its id."""
    layers: dict[str, LayerResult] = field(default_factory=dict)
    checks: list[CheckResult] = field(default_factory=list)

    @property
    def closed_by(self) -> LayerResult | None:
        """The layer that closed the way, if one has."""
        return next((r for r in self.layers.values() if r.outcome not in OPEN), None)

    def seen(self, source: EvidenceSource) -> dict[str, Evidence]:
        """Evidence by alias."""
        return {alias: source.by_id(i) for alias, i in self.aliases.items()}

    def evidence_ids(self) -> tuple[str, ...]:
        """Ids of what this walk has used, in order."""
        used = {*self.aliases.values(), *(i for check in self.checks for i in check.evidence)}
        return tuple(sorted(used, key=lambda i: (len(i), i)))


def gather(
    loaded: Loaded,
    layer: Layer,
    trail: Trail,
    source: EvidenceSource,
    noticed_step: int | None,
    symptoms: Sequence[str],
) -> None:
    """Get the evidence of a layer's checks, but not of those whose dependencies have not passed."""
    seen = trail.seen(source)
    judged = list(trail.checks)
    for check in layer.checks:
        blocks = blocked_by(check, trail.layers, judged)
        for alias, call in check.evidence.items() if not blocks else ():
            tool, args = resolve_call(call, seen, noticed_step, symptoms=symptoms)
            seen[alias] = source.get(tool, args)
            trail.aliases[alias] = seen[alias].id
        name = loaded.playbook.name
        judged.append(judge_check(check, seen, playbook=name, layer=layer.id, blocked_by=blocks))


def judge(
    loaded: Loaded,
    layer: Layer,
    trail: Trail,
    source: EvidenceSource,
    waivers: Iterable[Waiver],
) -> LayerResult:
    """Judge a layer on what was gathered; behind a closed layer it counts as not reached."""
    results = judge_layer(
        layer,
        trail.seen(source),
        playbook=loaded.playbook.name,
        layers=trail.layers,
        checks=trail.checks,
    )
    waiver = next((w for w in waivers if w.layer == layer.id), None)
    found = layer_outcome(layer, results, way_open=trail.closed_by is None, waiver=waiver)
    trail.checks.extend(results)
    trail.layers[layer.id] = found
    return found


def walk_all(
    loaded: Loaded,
    layers: Iterable[Layer],
    trail: Trail,
    source: EvidenceSource,
    noticed_step: int | None,
    symptoms: Sequence[str],
    waivers: Sequence[Waiver],
) -> None:
    """Gather and judge several layers; the way may close among them, or be closed already."""
    for layer in layers:
        gather(loaded, layer, trail, source, noticed_step, symptoms)
        judge(loaded, layer, trail, source, waivers)


def refusals(loaded: Loaded, trail: Trail) -> list[dict[str, Any]]:
    """What each layer behind the closed one was refused."""
    closed = trail.closed_by
    if closed is None:
        return []
    return [
        {
            "layer": layer.id,
            "blocked_by": closed.id,
            "not_read": [c.check for c in trail.checks if c.layer == layer.id and c.blocked_by],
            "read_as_facts": [
                c.check for c in trail.checks if c.layer == layer.id and not c.blocked_by
            ],
        }
        for layer in loaded.playbook.layers
        if trail.layers[layer.id].outcome == "not_reached"
    ]


def reach_verdict(
    loaded: Loaded,
    ask: Ask,
    trail: Trail,
    source: EvidenceSource,
    *,
    waivers: Iterable[Waiver],
    checkpoint_steps: Sequence[int],
    versions: Mapping[str, str],
) -> Verdict:
    """Conclude from a finished walk; only waivers that opened a layer are named."""
    _compare(loaded, ask, trail, source)
    used = [source.by_id(i) for i in trail.evidence_ids()]
    applied = [w for w in waivers if trail.layers[w.layer].outcome == "waived"]
    return conclude(
        loaded,
        ask=ask,
        layers=list(trail.layers.values()),
        checks=trail.checks,
        seen=trail.seen(source),
        waivers=applied,
        checkpoint_steps=checkpoint_steps,
        usage=Usage(tool_calls=len(used), seconds=round(sum(e.seconds for e in used), 3)),
        versions=dict(versions),
    )


def _compare(loaded: Loaded, ask: Ask, trail: Trail, source: EvidenceSource) -> None:
    """Get the comparisons at steps that the complaint does not name: only the walk dates them."""
    if not ask.symptoms:
        return
    seen = trail.seen(source)
    findings = findings_of(loaded, list(trail.layers.values()), trail.checks, seen)
    onset = findings[0].first_bad if findings else None
    step = None if onset is None or onset.from_start else onset.first_bad
    # Both sides of the end of a wide bracket may carry the fault.
    wide = onset is None or onset.latest - onset.earliest > WIDE
    for each in loaded.playbook.compared:
        dated = step is not None and not wide and ask.noticed_step in (None, step)
        if each.symptom in ask.symptoms if each.symptom else dated:
            tool, args = resolve_call(each.call, seen, ask.noticed_step, step, ask.symptoms)
            trail.aliases[each.alias] = source.get(tool, args).id
