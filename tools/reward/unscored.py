"""Rows that a reward function gave no score: a verifier that failed, not a wrong answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firstbad.tools.beside import rows_beside
from firstbad.tools.cut import aborted_rows, left_out
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import reward_weights
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, IntArray, RolloutBatch, Run
from firstbad.tools.stats import raised_stretch

OFTEN = 0.02
"""Share of rows without a score above which it is dated."""
FEWEST = 5
"""Captured rows without a score that can speak for the others."""
SURE_GAIN = 10.0
"""Log-likelihood a stretch of missing scores must gain, in nats, to be read as one."""


class Unscored(Dated):
    """Rows without a score in groups where others have one."""

    n_rows: int
    share: float
    """Of all rows, inside the stretch where it is raised: no score, while another row of the same
    group has one. Rows of whole groups without a score are another task's, as TRL writes them."""
    share_before: float | None
    """The same, outside the stretch; None without one."""
    share_largest: float
    """Largest share of one step."""
    stretch_gain: float
    """Log-likelihood gained by the stretch, nats; 0 when there is none."""
    short_by: int | None
    """Rows without a score in a step: the commonest number in the steps counted here; None where
    no step has any."""
    short_steps: int
    """Steps whose rows without a score are exactly the last ones, as many as `short_by`, and have
    no error on record: the list of scores is shorter than that of the rows."""
    short_share: float | None
    """Of the steps inside the stretch with rows that lack a score: those."""
    aborted_paid: int
    """Aborted rows without a score that carry an advantage, as if their answer had been wrong."""
    weight: float | None
    """Weight of the outcome part in the total; None where it is not known."""


@tool
def count_unscored(run: Run) -> Measured[Unscored]:
    """Rows that the outcome part gave no score while it scored others of the same prompt.

    TRL sums the scores that are there, so a row without one is paid like a wrong answer. Of other
    parts it is usual that they have nothing to say on some rows: a tool that was not called. Cut
    rows need no score where none of them carries an advantage, aborted ones none at all, nor any
    row where none that lacks a score is trained on: fillers. Gaps of a verifier that fails stand
    anywhere; those of a list that is too short are the last rows, as many at every step.

    Cannot tell: a verifier that scores its own failures as 0 (see `rejudge`), nor one that fails
    for all completions of a prompt at once.
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    if not batches:
        raise NoData("no rollouts with reward parts")
    rows = RowTable.of(run, batches)
    name = outcome_part(run, batches)
    lacking = np.isnan(rows.part(name))
    aborted = lacking & rows.values(aborted_rows)
    missing = lacking & ~aborted & ~left_out(rows)
    if missing.any() and not _trained(run, rows, missing):
        missing[:] = False
    scored = np.bincount(
        rows.group, weights=np.isfinite(rows.part(name)), minlength=len(rows.group_step)
    )
    hits = rows.count(missing & (scored[rows.group] > 0))
    stretch = raised_stretch(hits, rows.size)
    if stretch is not None and stretch.gain < SURE_GAIN:
        stretch = None
    inside = np.ones(len(rows.steps), bool)
    if stretch is not None:
        inside = (np.arange(len(rows.steps)) >= stretch.first) & (
            np.arange(len(rows.steps)) < stretch.stop
        )
    short = _short_lists(batches, rows, name, missing)
    gaps = short[inside & (hits > 0)]
    usual = int(np.bincount(np.abs(gaps)).argmax()) if len(gaps) else None
    n_short = int((gaps == usual).sum()) if usual is not None else 0
    share = float(hits[inside].sum() / rows.size[inside].sum())
    often = share > OFTEN
    first = (stretch.first if stretch is not None else 0) if often else None
    steps = rows.steps.tolist()
    metrics = Unscored(
        n_rows=len(rows.step),
        share=_r(share),
        share_before=(
            _r(hits[~inside].sum() / rows.size[~inside].sum()) if not inside.all() else None
        ),
        share_largest=_r((hits / rows.size).max()),
        stretch_gain=_r(stretch.gain) if stretch else 0.0,
        short_by=usual,
        short_steps=n_short,
        short_share=_r(n_short / len(gaps)) if len(gaps) else None,
        aborted_paid=int((aborted & (np.abs(rows.advantage) > 0)).sum()),
        weight=_weight(run, rows.parts, name),
        last_good_step=steps[first - 1] if first else None,
        first_bad_step=None if first is None else steps[first],
        last_bad_step=(
            steps[stretch.stop] - 1 if often and stretch and stretch.stop < len(steps) else None
        ),
        from_start=first == 0,
    )
    text = f"no row lacks a score of `{name}` that others of its prompt have"
    if hits.any():
        text = f"{percent(share)} of the rows have no score of `{name}`, others of their prompt do"
        if first is not None and stretch is not None:
            text += f", in steps {steps[first]} to {steps[stretch.stop - 1]}"
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 120)).astype(int)).tolist()
    table = Table(
        title=f"rows that have no score of `{name}`",
        columns=("step", "rows", "without a score"),
        rows=tuple((steps[i], int(rows.size[i]), int(hits[i])) for i in shown),
        cut_rows=len(steps) - len(shown),
    )
    return Measured(
        metrics,
        text,
        tables=(table,) if hits.any() else (),
        window=(steps[0], steps[-1]),
        signal=f"rows without a score of `{name}`",
    )


def _short_lists(
    batches: Sequence[RolloutBatch], rows: RowTable, name: str, missing: BoolArray
) -> IntArray:
    """(S,) rows without a score of each step; negative where they are not just its last ones.

    ... or where an error of the scoring is on record for one of them.
    """
    n = rows.count(missing)
    place = np.arange(len(rows.step)) - np.repeat(np.cumsum(rows.size) - rows.size, rows.size)
    last = place >= (rows.size - n)[rows.step]
    raised = [bool(e) for b in batches for e in b.errors.get(name) or [None] * len(b)]
    odd = rows.count(missing & (~last | np.array(raised, bool))) > 0
    return np.where(odd, -n, n)


def _trained(run: Run, rows: RowTable, missing: BoolArray) -> bool:
    """Whether a row without a score may be trained on: no advantage of 0, and not out of the loss.

    Of the loss the captured steps speak for the others, where they hold five such rows or more.
    """
    if (rows.advantage[missing] == 0).all():
        return False
    seen = n_in_loss = 0
    end = np.cumsum(rows.size)
    for capture in run.captures:
        mask = capture.mask("loss_mask")
        at = int(np.searchsorted(rows.steps, capture.step))
        if mask is None or "token_id" not in capture.arrays or rows_beside(run, capture) is None:
            continue
        if at == len(rows.steps) or rows.steps[at] != capture.step or len(mask) != rows.size[at]:
            continue
        own = missing[end[at] - rows.size[at] : end[at]]
        seen += int(own.sum())
        n_in_loss += int(mask[own].any(axis=1).sum())
    return seen < FEWEST or n_in_loss > 0


def _weight(run: Run, parts: list[str], name: str) -> float | None:
    weights = reward_weights(run, len(parts))
    return None if weights is None else float(weights[parts.index(name)])


def _r(value: float) -> float:
    return round(float(value), 6)
