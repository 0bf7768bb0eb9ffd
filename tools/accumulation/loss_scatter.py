"""Do all rows reach the loss? What the logged loss strays from the recomputed one tells."""

from __future__ import annotations

import math

import numpy as np

from firstbad.tools.accumulation.loss_forms import TOKENS_COUNT, loss_type
from firstbad.tools.accumulation.loss_model import collect_terms
from firstbad.tools.errors import NoData
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, FloatArray, Run
from firstbad.tools.segments import OF_THE_LOSS, HeldToSettings, held_to_settings
from firstbad.tools.stats import pearson

FEWEST = 20
ASTRAY = 0.1
"""Distance of logged and recomputed loss, in spreads over rows, of a step that counts as astray.

Token counts estimated from texts keep it below 0.03; with a quarter of the rows left out it is 0.43
on average, and below 0.1 in one step of five."""
SILENT = 3
"""Steps in a row that may stray no farther than sound ones although rows are left out."""
AHEAD, MOST = 10, 0.5
"""Of so many steps from an onset on, at least this share is astray."""
LEAST_LEFT_OUT, MOST_LEFT_OUT = 0.09, 0.3
"""Squared distance that rows left out can explain: q (1 - q), from one micro-batch of eight to a
fifth over its maximum."""
FLAT = 0.05
"""Spread of the recomputed loss over that of its rows, below which there is no slope to read."""


class LossScatter(HeldToSettings):
    """How far the logged loss strays from the recomputed one."""

    n_steps: int
    correlation: float
    """Of logged and recomputed loss, over the steps astray or all."""
    slope: float
    """Of logged on recomputed loss there: about the share of rows that is left."""
    flat: bool
    """The recomputed loss hardly varies there, as where each row weighs alike and the advantages of
    a group sum to 0: neither slope nor correlation tell anything."""
    distance: float
    """Mean squared distance over the mean squared spread over rows, over the same steps."""
    rows_missing: float | None
    """Share of rows that, left out at random, makes that distance; None where none does."""
    accumulation_steps: float | None
    token_agreement: float | None
    """Of estimated and logged mean length; 1 where the loss weighs all rows alike, so that token
    counts do not enter it."""


@tool
@held_to_settings(*OF_THE_LOSS)
def measure_loss_scatter(run: Run) -> Measured[LossScatter]:
    """Distance of the logged loss from the recomputed one, against the spread of its rows.

    Where a share q of the rows, drawn at random, does not reach the loss, the squared distance is
    q (1 - q) times the sum of the squared row terms (sampling without replacement). A factor, a
    wrong sign or a missing term stray otherwise: see `check_loss_identity`.

    Cannot tell: which rows; nor rows whose gradient is lost after the loss was computed.
    """
    if run.config.flag("use_vllm"):
        raise NoData("another engine samples: its importance weights scale the rows of the loss")
    terms, counts = collect_terms(run, fewest=FEWEST)
    use = terms.spread > 0
    if use.sum() < FEWEST:
        raise NoData(f"fewer than {FEWEST} steps whose rows differ in advantage")
    terms = terms.cut(use)
    rest = terms.logged - terms.predicted
    astray = np.abs(rest) > ASTRAY * terms.spread
    start = _onset(astray)
    side = terms if start is None else terms.cut(slice(start, len(rest)))
    rest = side.logged - side.predicted
    distance = float((rest**2).sum() / (side.spread**2).sum())
    missing = None
    if LEAST_LEFT_OUT <= distance <= MOST_LEFT_OUT:
        missing = (1 - math.sqrt(max(0.0, 1 - 4 * distance))) / 2
    onset = start if missing is not None else None
    opens = onset is not None and onset <= SILENT
    steps = terms.steps.astype(int).tolist()
    metrics = LossScatter(
        n_steps=len(steps),
        correlation=round(pearson(side.predicted, side.logged) or 0.0, 6),
        slope=_slope(side.predicted, side.logged),
        distance=round(distance, 6),
        flat=bool(np.std(side.predicted) < FLAT * np.sqrt((side.spread**2).mean())),
        token_agreement=counts.agreement if loss_type(run) in TOKENS_COUNT else 1.0,
        rows_missing=None if missing is None else round(missing, 4),
        accumulation_steps=run.config.number("gradient_accumulation_steps"),
        last_good_step=None if onset is None or opens else terms.good_before(onset - SILENT),
        first_bad_step=None if onset is None else steps[0 if opens else onset],
        from_start=opens,
        sampled=onset is not None and not opens,
    )
    text = (
        f"the logged loss strays from the recomputed one by {math.sqrt(distance):.2g} spreads over "
        f"rows (r {metrics.correlation:.3f})"
    )
    if missing is not None:
        text += f", as if {percent(missing)} of the rows did not reach it"
    if onset is not None:
        text += f", from step {metrics.first_bad_step} on"
    return Measured(
        metrics,
        text,
        window=(steps[0], steps[-1]),
        signal="distance of logged and recomputed loss",
    )


def _slope(x: FloatArray, y: FloatArray) -> float:
    """Least-squares slope with intercept; 0 where `x` does not vary."""
    r = pearson(x, y)
    return 0.0 if r is None else round(r * float(np.std(y) / np.std(x)), 4)


def _onset(astray: BoolArray) -> int | None:
    """First index from which most steps are astray, to the end of the run."""
    n = len(astray)
    rest = np.cumsum(astray[::-1])[::-1] / np.arange(n, 0, -1)
    near = np.array([astray[i : i + AHEAD].mean() for i in range(n)])
    found = np.flatnonzero(astray & (near >= MOST) & (rest >= MOST))
    return int(found[0]) if len(found) and n - found[0] >= AHEAD else None
