"""Words that several parts of the memo share: steps, onsets, names, where the way is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firstbad.playbooks.results import CheckResult, LayerResult, Onset
from firstbad.tools.numbers import number

MANY = 4
"""Checks that are counted rather than named."""


@dataclass(frozen=True)
class Row:
    """A label and what it says."""

    label: str
    text: str


def step(at: int) -> str:
    """A step as the memo writes it."""
    return number(at, step=True)


def onset_text(onset: Onset) -> str:
    """When it began, and ended where it did, in words."""
    if onset.last_bad is not None:
        return f"{_began(onset)}, last bad step {step(onset.last_bad)}"
    return _began(onset)


def _began(onset: Onset) -> str:
    if onset.from_start:
        return "bad from the start"
    if onset.first_bad is None:
        return "not dated"
    if onset.last_good is None and onset.sampled and onset.quiet is not None:
        return (
            f"after step {step(onset.quiet)} (the test was still quiet there, which does not make "
            f"it good), by step {step(onset.first_bad)}"
        )
    if onset.last_good is None:
        return f"step {step(onset.first_bad)}, no good step before it was measured"
    if onset.sampled:
        return (
            f"between step {step(onset.last_good)} (good) and step {step(onset.first_bad)} (bad); "
            "the steps between were not measured"
        )
    return f"step {step(onset.first_bad)} (last good {step(onset.last_good)})"


def read_all_the_same(layer: LayerResult, checks: Sequence[CheckResult]) -> str:
    """Which checks of a layer that was not reached were read; empty where none was."""
    read = [c for c in checks if c.layer == layer.id and c.outcome in ("pass", "fail")]
    facts = "an independent fact" if len(read) == 1 else "independent facts"
    told = [f"`{c.check}` fail" for c in read if c.outcome == "fail"]
    passed = [f"`{c.check}`" for c in read if c.outcome == "pass"]
    if passed:
        told.append(f"{', '.join(passed) if len(passed) < MANY else len(passed)} pass")
    return f"read as {facts}: {', '.join(told)}" if read else ""


def names(found: Sequence[str]) -> str:
    """Identifiers in a row, as code."""
    return ", ".join(f"`{name}`" for name in found)


def blocker(layers: Sequence[LayerResult]) -> str | None:
    """The layer at which the way is closed, or None."""
    return next((r.id for r in layers if r.outcome in ("fail", "inconclusive")), None)
