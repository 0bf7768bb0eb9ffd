"""Walk a playbook: what a check is blocked by, what a layer's checks add up to.

Pure functions over results; who runs the tools, and when, is the agent's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from firstbad.playbooks.gate import Seen, all_hold, judge, observe
from firstbad.playbooks.loader import COMPLAINT, REFERENCE, call_parts
from firstbad.playbooks.model import Call, Check, Layer, Playbook, Setting
from firstbad.playbooks.results import (
    STRENGTHS,
    CheckResult,
    LayerResult,
    Outcome,
    Waiver,
    WindowKind,
)

OPEN: frozenset[Outcome] = frozenset({"pass", "waived"})


def resolve_call(
    call: Call,
    seen: Seen,
    noticed_step: int | None,
    finding_step: int | None = None,
    symptoms: Sequence[str] = (),
) -> tuple[str, dict[str, Setting]]:
    """Tool name and settings, with `$alias.field` replaced by what was measured.

    `symptoms`: what is complained of, which `$complaint.WORD` asks for.
    """
    name, settings = call_parts(call)
    resolved: dict[str, Setting] = {}
    for key, value in settings.items():
        reference = REFERENCE.match(value) if isinstance(value, str) else None
        if reference is None:
            resolved[key] = value
        elif reference[1] is None:
            resolved[key] = finding_step if reference[0] == "$finding_step" else noticed_step
        elif reference[1] == COMPLAINT:
            resolved[key] = any(reference[2] in symptom.split("_") for symptom in symptoms)
        else:
            resolved[key] = observe(seen, f"{reference[1]}.{reference[2]}")
    return name, resolved


def blocked_by(
    check: Check, layers: Mapping[str, LayerResult], checks: Iterable[CheckResult]
) -> tuple[str, ...]:
    """What stands in the way: a dependency that has not passed, or a failure that voids the check.

    A waived layer counts as passed, and what failed in it voids nothing.
    """
    checks = list(checks)
    passed = {f"{c.layer}.{c.check}" for c in checks if c.outcome in OPEN}
    passed |= {name for name, layer in layers.items() if layer.outcome in OPEN}
    waived = {name for name, layer in layers.items() if layer.outcome == "waived"}
    failed = {f"{c.layer}.{c.check}" for c in checks if c.outcome == "fail"}
    stands = [name for name in check.depends_on if name not in passed]
    stands += [name for name in check.voided_by if name in failed]
    return tuple(name for name in stands if name.split(".", 1)[0] not in waived)


def judge_layer(
    layer: Layer,
    seen: Seen,
    *,
    playbook: str,
    layers: Mapping[str, LayerResult],
    checks: Sequence[CheckResult],
) -> tuple[CheckResult, ...]:
    """Judge every check of a layer, in order; later checks may depend on earlier ones."""
    found: list[CheckResult] = []
    for check in layer.checks:
        blocks = blocked_by(check, layers, [*checks, *found])
        found.append(judge(check, seen, playbook=playbook, layer=layer.id, blocked_by=blocks))
    return tuple(found)


def layer_outcome(
    layer: Layer, results: Sequence[CheckResult], *, way_open: bool, waiver: Waiver | None = None
) -> LayerResult:
    """What a layer's checks add up to.

    Any failure fails it. A required check that is open leaves it inconclusive, and so does any
    check whose measure is doubtful. A pass needs at least one required check; its strength is the
    weakest of theirs.
    """
    failed = [r for r in results if r.outcome == "fail"]
    open_ = [
        r
        for r in results
        if (r.required and r.outcome in ("inconclusive", "not_reached"))
        or r.reason == "bound_doubtful"
    ]
    passed = [r for r in results if r.required and r.outcome == "pass"]
    strength = max((r.strength for r in passed if r.strength), key=STRENGTHS.index, default=None)
    outcome: Outcome
    if not way_open:
        outcome, strength, reason = "not_reached", None, "an earlier layer has not passed"
    elif failed:
        outcome, strength = "fail", failed[0].strength
        reason = "; ".join(r.message for r in failed)
    elif open_ or not passed:
        outcome, strength = "inconclusive", None
        reason = "; ".join(f"{r.check}: {r.message}" for r in open_) or "nothing here can pass it"
    else:
        outcome, reason = "pass", "; ".join(r.message for r in passed if r.message)
    if waiver is not None and outcome in ("fail", "inconclusive"):
        outcome, reason = "waived", f"waived: {waiver.reason} (it was {outcome}: {reason})"
    return LayerResult(
        id=layer.id, number=layer.number, outcome=outcome, strength=strength, reason=reason
    )


def window_kind(playbook: Playbook, seen: Seen) -> WindowKind:
    """How the window passed: the first rule that holds; steady when none does."""
    for rule in playbook.window:
        if all_hold(rule.when, seen):
            return rule.kind
    return "steady"
