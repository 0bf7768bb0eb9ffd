"""The same samples as one batch and as several: what a probe found the gradient to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from firstbad.tools.accumulation.ledger import span_of, whole_factor
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.flight import Probe
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

ROUNDING = 6e-8
"""Half a unit of float32: what a spread of 0 stands for where sums are taken in another order."""
SPREADS = 10
"""A probe is off when it differs by so many of its own spreads ..."""
LARGEST = 1e9
"""Norm ratio that larger ones are shown as."""
LEAST = 0.05
"""... and by this share of the gradient. In 16 bits another layout alone turns it by some percent,
which repeating one layout does not show."""


class AccumulationProbe(Dated):
    """Accumulated against whole gradient, in the probe that differs most."""

    n_probes: int
    n_unequal: int
    """Probes on rows that differ in length."""
    spread_known: bool
    """The probe repeated one computation, so that it is known what differs by rounding alone."""
    cosine: float
    norm_ratio: float
    """Accumulated over whole."""
    difference: float
    """Norm of the difference of the two gradients over that of the whole one."""
    difference_over_spread: float | None
    """... over what repeating the same computation differs by."""
    turned: float
    """Part of the accumulated gradient that stands at a right angle to the whole one, relative to
    its own norm: 0 for a factor alone."""
    turned_over_spread: float | None
    equal_lengths_turned: float | None
    """The same on rows of equal lengths; None where no probe had them."""
    subset_turned: float | None
    """... against the best subset of the micro-batches."""
    factor: float | None
    """The norm ratio as a whole number or its inverse; None where it is none."""
    factor_is_microbatches: bool
    factor_is_ranks: bool
    world_size: int
    n_microbatches: int | None
    one_rank_known: bool
    one_rank_off: float | None
    """abs(norm ratio - 1) on one rank alone."""
    parameter_delta: float | None
    """Relative difference of the weights' first change; small beside a large factor where the
    optimizer divides it out."""


@dataclass(frozen=True)
class _Read:
    probe: Probe
    cosine: float
    ratio: float

    @property
    def difference(self) -> float:
        """Norm of the difference over that of the whole gradient, by the law of cosines."""
        return math.sqrt(max(0.0, 1 + self.ratio**2 - 2 * self.ratio * self.cosine))

    @property
    def turned(self) -> float:
        return _sine(self.cosine)

    @property
    def spread(self) -> float | None:
        return self.probe.number("spread")

    def over(self, value: float) -> float | None:
        return None if self.spread is None else value / max(self.spread, ROUNDING)

    @property
    def off(self) -> bool:
        over = self.over(self.difference)
        return self.difference > LEAST and (over is None or over > SPREADS)


@tool
def read_accumulation_probe(run: Run) -> Measured[AccumulationProbe]:
    """Gradient of one batch against that of the same rows in micro-batches, as a probe took it.

    A cosine of 1 with another norm is a factor, named where it is a whole number. A lower cosine is
    another sum: another denominator (then rows of equal lengths agree) or rows that are missing
    (then a subset of the micro-batches agrees). What counts as a difference is the spread of the
    probe's own repetition.

    Cannot tell: whether the loss is the right one; the probe takes it twice.
    """
    found = [
        _Read(p, max(-1.0, min(1.0, cosine)), min(ratio, LARGEST))
        for p in run.flight.probes_of("accumulation")
        if (cosine := p.number("cosine")) is not None
        and (ratio := p.number("norm_ratio")) is not None
        and ratio >= 0
    ]
    if not found:
        raise NoData("no probe `accumulation` was recorded")
    worst = max(found, key=lambda r: r.difference)
    equal = [r for r in found if r.probe.figures.get("equal_lengths") is True]
    unequal = [r for r in found if r.probe.figures.get("equal_lengths") is not True]
    steps = sorted({r.probe.step for r in found})
    bad = np.array([any(r.off for r in found if r.probe.step == s) for s in steps])
    worst_of = _counts(worst.probe)
    factor = whole_factor(worst.ratio)
    subset = worst.probe.number("cosine_subset")
    alone = worst.probe.number("norm_ratio_one_rank")
    metrics = AccumulationProbe(
        n_probes=len(found),
        n_unequal=len(unequal),
        spread_known=worst.spread is not None,
        cosine=round(worst.cosine, 9),
        norm_ratio=round(worst.ratio, 9),
        difference=round(worst.difference, 9),
        difference_over_spread=_rounded(worst.over(worst.difference)),
        turned=round(worst.turned, 9),
        turned_over_spread=_rounded(worst.over(worst.turned)),
        equal_lengths_turned=round(max(r.turned for r in equal), 9) if equal else None,
        subset_turned=None if subset is None else round(_sine(subset), 9),
        factor=factor,
        factor_is_microbatches=_is(factor, worst_of[0]),
        factor_is_ranks=_is(factor, worst_of[1]) or _is(factor, worst_of[1] ** 2),
        world_size=worst_of[1],
        n_microbatches=worst_of[0],
        one_rank_known=alone is not None,
        one_rank_off=None if alone is None else round(min(abs(alone - 1), LARGEST), 9),
        parameter_delta=_rounded(worst.probe.number("parameter_delta")),
        **asdict(span_of(steps, bad)),
    )
    return Measured(
        metrics,
        f"{len(found)} probes of one batch against several micro-batches: cosine "
        f"{number(metrics.cosine, digits=5)}, norm ratio {number(metrics.norm_ratio)}, relative "
        f"difference {number(metrics.difference, digits=3)}"
        + (
            f" (repeating one computation: {number(worst.spread, digits=2)})"
            if worst.spread is not None
            else ""
        ),
        tables=(_table(found),),
        signal="accumulated against whole gradient",
    )


def _counts(probe: Probe) -> tuple[int | None, int]:
    split, world = probe.number("n_microbatches"), probe.number("world_size")
    if world is None or not 1 <= world < LARGEST:
        world = 1
    return None if split is None or not 1 <= split < LARGEST else int(split), int(world)


def _is(factor: float | None, count: int | None) -> bool:
    if factor is None or not count or count < 2:
        return False
    return any(math.isclose(factor, k, rel_tol=1e-9) for k in (count, 1 / count))


def _sine(cosine: float) -> float:
    return math.sqrt(max(0.0, 1 - min(1.0, abs(cosine)) ** 2)) if cosine > 0 else 1.0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(min(value, 1e12), 9)


def _table(found: Sequence[_Read]) -> Table:
    columns = ("step", "micro-batches", "ranks", "equal lengths", "cosine", "norm ratio", "spread")
    rows = tuple(
        (
            r.probe.step,
            *_counts(r.probe),
            r.probe.figures.get("equal_lengths") is True,
            round(r.cosine, 6),
            round(r.ratio, 6),
            r.spread,
        )
        for r in found
    )
    return Table(title="probes", columns=columns, rows=rows[:20], cut_rows=max(0, len(rows) - 20))
