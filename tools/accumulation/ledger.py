"""The ledger of micro-batches: what each adds to one optimizer step, and with what weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.flight import Microbatch
from firstbad.tools.run import BoolArray, FloatArray, Run

WHOLE = 0.02
"""A ratio this near a whole number, or its inverse, is named after it."""
LASTING = 0.8
"""Share of the updates from an onset on that show it."""
LARGEST = 1e12
"""No count, denominator, loss or norm of a training comes near it, nor the others near its inverse:
such a number is a writer's mistake, and counts as not recorded."""
SAME = 1e-4
"""Relative difference of figures that are written as they were used."""


@dataclass(frozen=True)
class Update:
    """One optimizer step: its micro-batches on all ranks."""

    step: int
    parts: tuple[Microbatch, ...]
    trained: tuple[str, ...]
    """Names of the rows that the step was to train, where they are recorded."""
    norm: float | None
    """Gradient norm before clipping."""
    logged: float | None
    """Loss in the metrics."""

    @cached_property
    def ranks(self) -> int:
        """Ranks that have micro-batches."""
        return max(1, len({part.rank for part in self.parts}))

    @cached_property
    def loss(self) -> float | None:
        """Sum of what the micro-batches began their backward passes with."""
        losses = [part.loss for part in self.parts if part.loss is not None]
        return sum(losses) if len(losses) == len(self.parts) else None

    @property
    def averaged(self) -> bool | None:
        """Whether ranks are averaged rather than summed; None where nothing tells.

        What the ledger says, or else which of the two gives the logged loss.
        """
        if self.ranks == 1:
            return False
        said = {part.reduction for part in self.parts} - {None}
        if said:
            return said == {"mean"}
        if self.loss is None or self.logged is None or math.isclose(self.loss, 0, abs_tol=1e-12):
            return None
        ratio = self.logged / self.loss
        fits = [abs(ratio * n - 1) < WHOLE for n in (self.ranks, 1)]
        return None if fits[0] == fits[1] else fits[0]


def updates_of(run: Run) -> list[Update]:
    """Every optimizer step with a ledger, in order.

    Raises:
        NoData: no captured step has one, or the process group is larger than what it holds.
    """
    loss = run.signals.get("loss")
    found = []
    for step in run.flight:
        own = {part.update: None for part in step.microbatches}
        for place, update in enumerate(own):
            norm = step.norms[place].before_clip if len(step.norms) == len(own) else None
            found.append(
                Update(
                    step.step,
                    tuple(_possible(part) for part in step.microbatches if part.update == update),
                    step.stages.trained if len(own) == 1 else (),
                    _norm(norm),
                    loss.at(step.step) if loss is not None and len(own) == 1 else None,
                )
            )
    if not found:
        raise NoData("no ledger of micro-batches was recorded")
    world, ranks = run.flight.environment.get("WORLD_SIZE", ""), max(u.ranks for u in found)
    if world.isdecimal() and int(world) > ranks:
        raise NoData(f"the ledger holds {ranks} of {world} ranks (`WORLD_SIZE`)")
    return found


def _possible(part: Microbatch) -> Microbatch:
    """The micro-batch without numbers that no training has."""
    scale = 1.0 if part.scale is None else part.scale
    # Below 0: measured on a gradient that has the wrong sign.
    weighed = all(1 / LARGEST < abs(v) < LARGEST for v in (part.denominator or 0.0, scale))
    return replace(
        part,
        n_samples=_count(part.n_samples),
        n_tokens=_count(part.n_tokens),
        denominator=part.denominator if weighed else None,
        loss=part.loss if part.loss is not None and abs(part.loss) < LARGEST else None,
        grad_norm=_norm(part.grad_norm),
    )


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < LARGEST else None


def _norm(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < LARGEST else None


def log_agreement(updates: Sequence[Update]) -> float | None:
    """Share of updates whose logged loss is that of all their micro-batches; None without any.

    Otherwise the ledger holds a part of them, such as one rank of many, or another loss is logged.
    """
    fits = [
        any(abs(u.loss / n - u.logged) <= WHOLE * abs(u.logged) + 1e-9 for n in (1, u.ranks))
        for u in updates
        if u.loss is not None and u.logged is not None
    ]
    return round(sum(fits) / len(fits), 6) if fits else None


def whole_factor(ratio: float) -> float | None:
    """The whole number, or its inverse, that a ratio is within 2 % of; None for 1 and others."""
    if not 1 / LARGEST < ratio < LARGEST:
        return None
    size = max(ratio, 1 / ratio)
    whole = round(size)
    if whole < 2 or abs(size / whole - 1) > WHOLE:
        return None
    return float(whole) if ratio > 1 else 1 / whole


@dataclass(frozen=True)
class Span:
    """Since when a flag is set, in the fields of `Dated`."""

    last_good_step: int | None = None
    first_bad_step: int | None = None
    last_bad_step: int | None = None
    from_start: bool = False
    sampled: bool = False


def span_of(steps: Sequence[int], bad: BoolArray, lasting: float = LASTING) -> Span:
    """The first step that is bad with most of what follows, up to the last bad one."""
    if not bad.any():
        return Span()
    last = int(np.flatnonzero(bad)[-1])
    ahead = np.cumsum(bad[: last + 1][::-1])[::-1] / np.arange(last + 1, 0, -1)
    first = int(np.flatnonzero(bad[: last + 1] & (ahead >= lasting))[0])
    before = steps[first - 1] if first else None
    return Span(
        before,
        steps[first],
        steps[last + 1] - 1 if last < len(steps) - 1 else None,
        first == 0,
        before is not None and steps[first] - before > 1,
    )


def spread_of(values: FloatArray) -> float:
    """Largest over smallest of positive values, less 1."""
    return float(values.max() / values.min() - 1) if len(values) and values.min() > 0 else 0.0
