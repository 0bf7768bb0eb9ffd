"""The unit of a reward part: does what it pays for one thing grow while what it pays for stays?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import reward_weights
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import FloatArray, Run

LEVELS = 4
"""Most values of a step, apart from 0, of a part that pays fixed amounts."""
UNITS = 8
"""Fewest units over the run: a ladder of a few amounts is climbed, not inflated."""
SAME = 0.01
"""Relative difference up to which two amounts are one."""
FEWEST = 20


class Units(Dated):
    """The part whose unit moves most; a unit is the largest amount of a step."""

    n_parts: int
    """Parts that pay fixed amounts in every step."""
    n_steps: int
    unit_factor: float
    """Unit of the last fifth over the first, or the other way round; 1 where none moves."""
    grows: bool
    unit_first: float | None
    unit_last: float | None
    distinct_units: int
    """Units over the run, of that part."""


@dataclass(frozen=True)
class _Drift:
    name: str
    unit: FloatArray
    """(S,) NaN where nothing was paid."""
    first: float
    last: float
    distinct: int

    @property
    def factor(self) -> float:
        return max(self.first, self.last) / min(self.first, self.last)


@tool
def measure_part_units(run: Run) -> Measured[Units]:
    """What a reward part pays at most, step by step, where it pays the same few amounts for all.

    A part that is 0 or 1 in each row at the beginning, and 0 or 30 at the end, pays the same thing
    more and more; a part that pays by length or count has many amounts in one step and is left
    out, and so is one that climbs a ladder of up to 7 amounts.

    Cannot tell: a schedule of a part that was meant; a jump is seen by `measure_reward_parts` too.
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    if len(batches) < FEWEST:
        raise NoData(f"rollouts with reward parts of fewer than {FEWEST} steps")
    rows = RowTable.of(run, batches)
    weights = reward_weights(run, len(rows.parts))
    counted = [n for i, n in enumerate(rows.parts) if weights is None or weights[i] != 0]
    fixed = [d for name in counted if (d := _drift(rows, name)) is not None]
    moved = [d for d in fixed if d.distinct >= UNITS]
    best = max(moved, key=lambda d: d.factor, default=None)
    since = None if best is None else _since(best)
    steps = rows.steps.tolist()
    metrics = Units(
        n_parts=len(fixed),
        n_steps=len(steps),
        unit_factor=round(best.factor, 6) if best else 1.0,
        grows=best is not None and best.last > best.first,
        unit_first=round(best.first, 6) if best else None,
        unit_last=round(best.last, 6) if best else None,
        distinct_units=best.distinct if best else 0,
        last_good_step=steps[since - 1] if since else None,
        first_bad_step=None if since is None else steps[since],
        from_start=since is not None and since <= 1,
        gradual=True,
    )
    if best is None:
        return Measured(metrics, f"{len(fixed)} parts pay fixed amounts, and these do not move")
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 60)).astype(int))
    return Measured(
        metrics,
        f"`{best.name}` pays {number(best.first, digits=3)} at most in the first fifth of the run "
        f"and {number(best.last, digits=3)} in the last, in amounts of the same proportions",
        tables=(
            Table(
                title=f"largest amount of `{best.name}`",
                columns=("step", "amount"),
                rows=tuple((steps[i], round(float(best.unit[i]), 6)) for i in shown),
                cut_rows=len(steps) - len(shown),
            ),
        ),
        window=(steps[0], steps[-1]),
        signal=f"unit of `{best.name}`",
    )


def _drift(rows: RowTable, name: str) -> _Drift | None:
    """A part's unit by step, or None where it does not pay fixed amounts in every step."""
    values = rows.part(name)
    use = np.isfinite(values) & (values != 0)
    paid, step = values[use], rows.step[use]
    # Of each step the first of its largest amounts, whatever their sign.
    largest = np.abs(paid) == rows.highest(np.where(use, np.abs(values), np.nan))[step]
    there, at = np.unique(step[largest], return_index=True)
    if len(there) < FEWEST:
        return None
    unit = np.full(len(rows.steps), np.nan)
    unit[there] = paid[largest][at]
    if len(np.unique(np.round(paid / unit[step], 3))) > LEVELS:
        return None
    known = unit[np.isfinite(unit)]
    fifth = max(3, len(known) // 5)
    first, last = float(np.median(known[:fifth])), float(np.median(known[-fifth:]))
    if first * last <= 0:
        return None
    distinct = np.unique(np.round(np.log(np.abs(known)) / SAME))
    return _Drift(name, unit, first, last, len(distinct))


def _since(drift: _Drift) -> int | None:
    """Place of the step from which on the unit is no longer the first one."""
    known = np.flatnonzero(np.isfinite(drift.unit))
    first = float(drift.unit[known[0]])
    same = np.abs(drift.unit[known] / first - 1) <= SAME
    last = int(np.flatnonzero(same)[-1])
    return int(known[last + 1]) if last + 1 < len(known) else None
