"""Checks that cannot apply to a run, with the setting or fact that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firstbad.playbooks.fill import fill
from firstbad.playbooks.gate import Seen, all_hold
from firstbad.playbooks.model import Inapplicable
from firstbad.playbooks.results import CheckResult

Reasons = Mapping[str, str]
"""Why a check does not apply, by `layer.check`."""


def inapplicable(
    rules: Iterable[Inapplicable], checks: Iterable[CheckResult], seen: Seen
) -> Reasons:
    """Checks without evidence that the run's own settings or records rule out.

    A check that could be decided, is in doubt, or whose tool broke is never among them.
    """
    lacking = {f"{c.layer}.{c.check}" for c in checks if c.reason == "evidence_missing"}
    holding = [rule for rule in rules if all_hold(rule.when, seen)]
    return {
        name: fill(rule.because, seen)
        for rule in reversed(holding)  # the first rule that holds speaks
        for name in rule.checks
        if name in lacking
    }


def is_optional(result: CheckResult) -> bool:
    """Whether a check lacks all of its data and its layer does without it."""
    return (
        not result.required
        and result.reason == "evidence_missing"
        and all(c.observed is None for c in result.clauses)
    )
