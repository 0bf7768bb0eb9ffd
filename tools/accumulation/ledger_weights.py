"""What a trained token weighs in each micro-batch, and what all weights add up to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from firstbad.tools.accumulation.ledger import (
    SAME,
    WHOLE,
    Update,
    log_agreement,
    span_of,
    spread_of,
    updates_of,
    whole_factor,
)
from firstbad.tools.beside import rows_of_capture
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, FloatArray, Run

UNITS = {"dapo": "tokens", "token-mean": "tokens", "cispo": "tokens", "grpo": "rows"}
"""What the denominator of a loss counts; `dr_grpo` counts rows times a constant."""
ALWAYS = 0.95
"""Share of the updates from an onset on that are off, and on one side."""
LOCAL = {"bnpo"}
"""Losses whose stated denominator is the micro-batch's own count."""
SHOWN = 12


class MicrobatchWeights(Dated):
    """Weight of a trained token (or row) in the sum of micro-batches; 1 over all of them is right.

    Weight: scale over denominator, over the ranks where these are averaged.
    """

    n_updates: int
    n_microbatches: int
    """Of an update, all ranks together; the median."""
    n_ranks: int
    accumulation_steps: float | None
    """As configured."""
    by_tokens: bool
    """The weights are those of tokens; False: of rows."""
    log_agreement: float | None
    """Share of updates whose logged loss is the sum of the ledger's; None where none is logged.
    Below 1 the ledger may hold a part of the micro-batches."""
    n_negative: int
    """Updates from an onset on in which all weights are below 0: measured on a gradient, that has
    the wrong sign."""
    n_off: int
    """Updates from an onset on whose weights add up to more than 1, or to less, nearly all."""
    weight_sum: float
    """What they add up to: the median of those, or of all."""
    weight_sum_off: float
    """max(sum, 1 / sum) - 1."""
    weight_sum_spread: float
    """Largest over smallest of those, less 1: near 0 for a factor."""
    factor: float | None
    """That sum as a whole number or its inverse; None where it is none."""
    factor_is_ranks: bool
    """The factor is the number of ranks or its square, or the inverse of one of them."""
    factor_is_accumulation: bool
    """... the configured accumulation steps, or their inverse."""
    factor_is_generation: bool
    """The sum is accumulation steps over the micro-batches of a generation batch, not 1."""
    n_unequal: int
    """Updates from an onset on in which a token weighs more in one micro-batch than in another."""
    weight_ratio: float
    """Largest over smallest weight in them, the median; 1 where they are equal."""
    own_counts: bool
    """In those, each micro-batch is divided by its own count."""
    local_by_design: bool
    """The stated loss is the mean of each micro-batch."""
    padded: bool
    """The updates that are off divide by rows times the longest row."""
    loss_of_parts: float | None
    """Loss of the worst update as its micro-batches sum up ..."""
    loss_one_denominator: float | None
    """... and what the same terms give over one denominator."""


@dataclass(frozen=True)
class _Weights:
    """One update: (M,) counts and weights of its micro-batches."""

    update: Update
    count: FloatArray
    weight: FloatArray
    """Their size."""
    averaged: bool
    negative: bool
    """All of them are below 0."""

    @property
    def total(self) -> float:
        """What the weights add up to."""
        return float(self.count @ self.weight)

    @property
    def unequal(self) -> float:
        """Largest over smallest weight, less 1."""
        return spread_of(self.weight[self.count > 0])

    @property
    def losses(self) -> tuple[float, float] | None:
        """Loss as summed, and over one denominator."""
        if self.update.loss is None or not (self.weight > 0).all():
            return None
        ranks = self.update.ranks if self.averaged else 1
        parts = np.array([part.loss for part in self.update.parts], float) / ranks
        return float(parts.sum()), float((parts / self.weight).sum() / self.count.sum())


@tool
def check_microbatch_weights(run: Run) -> Measured[MicrobatchWeights]:
    """Weights of trained tokens in the recorded micro-batches of every update.

    A loss that is a mean over all tokens (or rows) of a step gives each of them the same weight,
    and the weights add up to 1. What they are a mean of follows from the loss type, or from which
    of the two is steadier. The number that they add up to is the factor of the gradient.

    Cannot tell: what happens to a gradient after its backward pass, nor whether the counts are
    those of the right tokens.
    """
    updates = updates_of(run)
    kind = run.config.text("loss_type")
    read = [w for unit in _units(kind) if (w := _read(updates, unit, run))]
    if not read:
        raise NoData("the ledger names no denominators with the counts beside them")
    best = min(read, key=_unsteady)
    by_tokens = best is read[0] and _units(kind)[0] == "tokens"
    steps = [w.update.step for w in best]
    total = np.array([w.total for w in best])
    unequal = np.array([w.unequal for w in best]) > WHOLE
    above, below = (_lasting(steps, side * np.log(total) > WHOLE) for side in (1, -1))
    off = above if above.sum() > below.sum() else below
    unequal = _lasting(steps, unequal)
    negative = _lasting(steps, np.array([w.negative for w in best]))
    sums = total[off] if off.any() else total
    middle = float(np.median(sums))
    factor = whole_factor(middle)
    ranks = max(w.update.ranks for w in best)
    accumulation = run.config.number("gradient_accumulation_steps")
    ratios = [w.unequal + 1 for w, u in zip(best, unequal, strict=True) if u]
    worst = max(best, key=_apart)
    losses = worst.losses
    metrics = MicrobatchWeights(
        n_updates=len(best),
        n_microbatches=int(np.median([len(w.update.parts) for w in best])),
        n_ranks=ranks,
        accumulation_steps=accumulation,
        by_tokens=by_tokens,
        log_agreement=log_agreement([w.update for w in best]),
        n_negative=int(negative.sum()),
        n_off=int(off.sum()),
        weight_sum=round(middle, 6),
        weight_sum_off=round(max(middle, 1 / middle) - 1, 6),
        weight_sum_spread=round(spread_of(sums), 6),
        factor=factor,
        factor_is_ranks=_is(factor, ranks) or _is(factor, ranks**2),
        factor_is_accumulation=_is(factor, accumulation),
        factor_is_generation=_is_generation(run, middle),
        n_unequal=int(unequal.sum()),
        weight_ratio=round(float(np.median(ratios)), 6) if ratios else 1.0,
        own_counts=bool(ratios) and all(_own(w) for w, u in zip(best, unequal, strict=True) if u),
        local_by_design=kind in LOCAL,
        padded=bool(off.any())
        and all(_padded(run, w) for w, o in zip(best, off, strict=True) if o),
        loss_of_parts=None if losses is None else round(losses[0], 6),
        loss_one_denominator=None if losses is None else round(losses[1], 6),
        **asdict(span_of(steps, negative if negative.any() else off | unequal)),
    )
    unit = "tokens" if by_tokens else "rows"
    off_text = f" ({metrics.n_off} updates off)" if metrics.n_off else ""
    off_text += f" ({metrics.n_negative} of them below 0)" if metrics.n_negative else ""
    return Measured(
        metrics,
        f"{len(best)} updates of {metrics.n_microbatches} micro-batches: the weights of trained "
        f"{unit} add up to {number(middle)}{off_text}; {metrics.n_unequal} updates in which they "
        "differ between micro-batches",
        tables=(_table(best),),
        window=(steps[0], steps[-1]),
        signal="weights of micro-batches",
    )


def _lasting(steps: Sequence[int], bad: BoolArray) -> BoolArray:
    """The flags from the step on at which nearly all are set."""
    first = span_of(steps, bad, ALWAYS).first_bad_step
    return bad & (np.array(steps) >= (math.inf if first is None else first))


def _units(kind: str | None) -> list[str]:
    if kind == "dr_grpo":
        return ["constant"]
    return [UNITS[kind]] if kind in UNITS else ["tokens", "rows", "constant"]


def _read(updates: Sequence[Update], unit: str, run: Run) -> list[_Weights]:
    """Updates whose micro-batches all have a denominator and a count."""
    cap = run.config.number("max_completion_length")
    if unit == "constant" and not cap:
        return []
    found = []
    for update in updates:
        counts = [p.n_tokens if unit == "tokens" else p.n_samples for p in update.parts]
        below = [p.denominator for p in update.parts]
        if None in counts or None in below or not all(below) or not sum(filter(None, counts)):
            continue
        count = np.array(counts, float) * ((cap or 1.0) if unit == "constant" else 1.0)
        scale = np.array([1.0 if p.scale is None else p.scale for p in update.parts])
        weight = scale / np.array(below, float)
        negative = bool((weight[count > 0] < 0).all())
        weight = np.abs(weight)
        averaged = update.averaged
        if averaged is None:  # the reading that finds less
            averaged = abs(math.log(count @ weight / update.ranks)) < abs(math.log(count @ weight))
        weight = weight / (update.ranks if averaged else 1)
        found.append(_Weights(update, count, weight, averaged, negative))
    return found


def _unsteady(weights: Sequence[_Weights]) -> tuple[float, float]:
    totals = np.array([w.total for w in weights])
    return round(spread_of(totals), 3), abs(math.log(float(np.median(totals))))


def _is(factor: float | None, setting: float | None) -> bool:
    if factor is None or not setting or setting <= 1:
        return False
    return any(math.isclose(factor, k, rel_tol=WHOLE) for k in (setting, 1 / setting))


def _is_generation(run: Run, total: float) -> bool:
    """Whether the sum is accumulation steps over steps for a generation batch."""
    accumulated = run.config.number("gradient_accumulation_steps")
    generated = run.config.number("steps_per_generation")
    if not accumulated or not generated or accumulated == generated:
        return False
    return math.isclose(total, accumulated / generated, rel_tol=5 * WHOLE)


def _own(weights: _Weights) -> bool:
    below = np.array([part.denominator for part in weights.update.parts], float)
    return bool(np.allclose(below, weights.count, rtol=SAME))


def _padded(run: Run, weights: _Weights) -> bool:
    """Whether the denominator counts all places of the step's rows up to the longest one."""
    own = rows_of_capture(run, weights.update.step)
    lengths = None if own is None else own.n_tokens
    rows = [part.n_samples for part in weights.update.parts]
    if lengths is None or None in rows or not len(lengths):
        return False
    places = sum(filter(None, rows)) * int(lengths.max())
    return math.isclose(weights.total, float(weights.count.sum()) / places, rel_tol=WHOLE)


def _apart(weights: _Weights) -> float:
    losses = weights.losses
    return 0.0 if losses is None else abs(losses[0] - losses[1])


def _table(weights: Sequence[_Weights]) -> Table:
    """Micro-batches of the update whose loss is farthest from the one over one denominator."""
    worst = max(weights, key=_apart)
    rows = [
        (p.rank, p.microbatch, p.n_samples, p.n_tokens, p.denominator, p.scale, p.loss)
        for p in worst.update.parts
    ]
    return Table(
        title=f"micro-batches of step {worst.update.step}",
        columns=("rank", "micro-batch", "rows", "trained tokens", "denominator", "scale", "loss"),
        rows=tuple(rows[:SHOWN]),
        cut_rows=max(0, len(rows) - SHOWN),
    )
