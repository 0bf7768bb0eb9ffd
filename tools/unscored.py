"""Rows that a reward function gave no score: a verifier that failed, not a wrong answer."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.groups import outcome_part
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import reward_weights
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import Run
from firstbad.tools.stats import raised_stretch

OFTEN = 0.02
"""Share of rows without a score above which it is dated."""
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
    weight: float | None
    """Weight of that part in the total; None where it is not known."""


@tool
def count_unscored(run: Run) -> Measured[Unscored]:
    """Rows that got no score from a reward part which scored others of the same prompt.

    TRL sums the scores that are there, so a row without one is paid like a wrong answer. The part
    with the most such rows is told.

    Cannot tell: a verifier that scores its own failures as 0 (see `rejudge`), nor one that fails
    for all completions of a prompt at once.
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    if not batches:
        raise NoData("no rollouts with reward parts")
    rows = RowTable.of(run, batches)
    n_groups = len(rows.group_step)
    hits = {}
    for name in rows.parts:
        missing = np.isnan(rows.part(name))
        some = np.bincount(rows.group, weights=~missing, minlength=n_groups)[rows.group] > 0
        hits[name] = rows.count(missing & some)
    order = sorted(rows.parts, key=lambda name: (name != outcome_part(run, batches), name))
    worst = max(order, key=lambda name: int(hits[name].sum()))
    stretch = raised_stretch(hits[worst], rows.size)
    if stretch is not None and stretch.gain < SURE_GAIN:
        stretch = None
    inside = np.ones(len(rows.steps), bool)
    if stretch is not None:
        inside = (np.arange(len(rows.steps)) >= stretch.first) & (
            np.arange(len(rows.steps)) < stretch.stop
        )
    share = float(hits[worst][inside].sum() / rows.size[inside].sum())
    often = share > OFTEN
    first = (stretch.first if stretch is not None else 0) if often else None
    steps = rows.steps.tolist()
    metrics = Unscored(
        n_rows=len(rows.step),
        share=_r(share),
        share_before=(
            _r(hits[worst][~inside].sum() / rows.size[~inside].sum()) if not inside.all() else None
        ),
        share_largest=_r((hits[worst] / rows.size).max()),
        stretch_gain=_r(stretch.gain) if stretch else 0.0,
        weight=_weight(run, rows.parts, worst),
        last_good_step=steps[first - 1] if first else None,
        first_bad_step=None if first is None else steps[first],
        last_bad_step=(
            steps[stretch.stop - 1] if often and stretch and stretch.stop < len(steps) else None
        ),
        from_start=first == 0,
    )
    text = f"no row lacks a score of `{worst}` that others of its prompt have"
    if hits[worst].any():
        text = f"{percent(share)} of the rows have no score of `{worst}`, others of their prompt do"
        if first is not None and stretch is not None:
            text += f", in steps {steps[first]} to {steps[stretch.stop - 1]}"
    shown = np.flatnonzero(hits[worst])
    table = Table(
        title=f"steps with rows that have no score of `{worst}`",
        columns=("step", "rows", "without a score"),
        rows=tuple((steps[i], int(rows.size[i]), int(hits[worst][i])) for i in shown[:40].tolist()),
        cut_rows=max(0, len(shown) - 40),
    )
    return Measured(
        metrics,
        text,
        tables=(table,) if len(shown) else (),
        window=(steps[0], steps[-1]),
        signal=f"rows without a score of `{worst}`",
    )


def _weight(run: Run, parts: list[str], name: str) -> float | None:
    weights = reward_weights(run, len(parts))
    return None if weights is None else float(weights[parts.index(name)])


def _r(value: float) -> float:
    return round(float(value), 6)
