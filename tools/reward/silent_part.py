"""Steps in which a reward part that scores every row scores none."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import percent
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, Run

FULL, SPARE = 0.98, 0.5
"""Share of scored rows from which a part scores a step, and below which it belongs to others."""


class SilentPart(Dated):
    """The outcome part where it is silent, though it scores all rows of the other steps."""

    n_steps: int
    n_silent: int
    """Steps in which it scores no row."""
    rows_silent: int
    usual: float
    """Share of rows that it scores in the other steps, the median."""
    other_task: bool
    """Another part scores rows of those steps and hardly any others: they are another task's."""


@tool
def find_silent_part(run: Run) -> Measured[SilentPart]:
    """Steps whose rows have no score of the outcome part, which all rows of other steps have.

    TRL sums the scores that are there, so that these rows are paid as if all were wrong. Where
    another part takes its place, these are prompts of another task.

    Cannot tell: a verifier that scores its own failures as 0 (see `rejudge`).
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    if not batches:
        raise NoData("no rollouts with reward parts")
    rows = RowTable.of(run, batches)
    name = outcome_part(run, batches)
    if not name:
        raise NoData("no part of the reward looks like the outcome")
    share = _scored(rows, name)
    silent = share == 0
    usual = float(np.median(share[~silent])) if not silent.all() else 0.0
    steps = rows.steps.tolist()
    at = np.flatnonzero(silent)
    found = bool(len(at)) and usual >= FULL
    first, last = (int(at[0]), int(at[-1])) if found else (0, 0)
    metrics = SilentPart(
        n_steps=len(steps),
        n_silent=len(at),
        rows_silent=int(rows.size[silent].sum()),
        usual=round(usual, 6),
        other_task=any(_instead(_scored(rows, p), silent) for p in rows.parts if p != name),
        last_good_step=steps[first - 1] if found and first else None,
        first_bad_step=steps[first] if found else None,
        last_bad_step=steps[last + 1] - 1 if found and last + 1 < len(steps) else None,
        from_start=found and first == 0,
    )
    text = f"`{name}` scores {percent(usual)} of the rows of a step"
    if len(at):
        text += f", and none in {len(at)} of {len(steps)} steps, the first is {steps[at[0]]}"
    return Measured(
        metrics, text, window=(steps[0], steps[-1]), signal=f"rows without a score of `{name}`"
    )


def _scored(rows: RowTable, part: str) -> FloatArray:
    """(S,) share of the rows of each step that a part scores."""
    scored: FloatArray = rows.count(np.isfinite(rows.part(part))) / np.maximum(rows.size, 1)
    return scored


def _instead(share: FloatArray, silent: BoolArray) -> bool:
    """Whether a part scores the silent steps and hardly any other one."""
    if not silent.any() or silent.all():
        return False
    return bool(np.median(share[silent]) > SPARE > np.median(share[~silent]))
