"""Which weights fit the engine's log-probs: the claimed ones, the first ones, or some between?"""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.probability.sides import pooled, read_sides
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

APART = 0.02
"""Nats between two sides from which a capture tells which of two weights fits."""


class FittingWeights(Dated):
    """Engine against the claimed weights and against the reference, where it is the first policy.

    Of the captures at which engine and trainer, and trainer and reference, are 0.02 nats apart;
    None where there are none.
    """

    n_tokens: int
    claimed_difference: float | None
    """Mean abs(engine - trainer), nats: the version that the rows claim."""
    reference_difference: float | None
    """Mean abs(engine - reference)."""
    reference_fits: float | None
    """`reference_difference` over `claimed_difference`: near 0 where the engine still serves the
    weights that training began with."""
    way_back: float | None
    """Least squares of (engine - trainer) on (reference - trainer): 0 for the trainer's weights, 1
    for the first ones, between for a policy on the way."""
    way_back_fit: float | None
    """Share of the squared difference that this explains: 0 for another kernel."""


@tool
def fit_version(run: Run) -> Measured[FittingWeights]:
    """Which weights fit the engine's log-probs: the claimed ones, the first, or some between.

    Rows that claim older weights are left out. Uses the reference as the policy that training began
    with.

    Cannot tell: weights on another way than that from the reference to the trainer; nothing where
    the reference is another model.
    """
    sides = list(read_sides(run, "trainer", "engine", "ref"))
    engine = {s.step: (use, -d) for s, use, d in pooled(sides, "trainer", "engine")}
    moved = {s.step: (use, -d) for s, use, d in pooled(sides, "trainer", "ref")}
    if not engine.keys() & moved.keys():
        raise NoData(
            "no captures of fresh rollouts with log-probs of engine, trainer and reference"
        )
    rows, ys, xs = [], [], []
    for step, (use, d) in engine.items():
        if step not in moved:
            continue
        both = use & moved[step][0]
        y, x = d[both], moved[step][1][both]
        if len(y) and np.abs(y).mean() > APART and np.abs(x).mean() > APART:
            rows.append((step, len(y), _r(np.abs(y).mean()), _r(np.abs(y - x).mean())))
            ys.append(y)
            xs.append(x)
    if not rows:
        found = FittingWeights(
            n_tokens=0,
            claimed_difference=None,
            reference_difference=None,
            reference_fits=None,
            way_back=None,
            way_back_fit=None,
            sampled=True,
        )
        return Measured(found, "engine, trainer and reference are nowhere apart: nothing to fit")
    y, x = np.concatenate(ys), np.concatenate(xs)
    back = float(x @ y) / float(x @ x)
    metrics = FittingWeights(
        n_tokens=len(y),
        claimed_difference=_r(np.abs(y).mean()),
        reference_difference=_r(np.abs(y - x).mean()),
        reference_fits=_r(np.abs(y - x).mean() / np.abs(y).mean()),
        way_back=_r(back),
        way_back_fit=_r(back**2 * float(x @ x) / float(y @ y)),
        first_bad_step=rows[0][0],
        last_good_step=max((s for s in engine if s < rows[0][0]), default=None),
        from_start=min(engine) == rows[0][0],
        gradual=True,
        sampled=True,
    )
    table = Table(
        title="engine against the claimed and the first weights, nats",
        columns=("step", "tokens", "from the trainer", "from the reference"),
        rows=tuple(rows[:60]),
        cut_rows=max(0, len(rows) - 60),
    )
    return Measured(
        metrics,
        f"the engine's log-probs lie {number(metrics.claimed_difference, digits=3)} nats from the "
        f"trainer's and {number(metrics.reference_difference, digits=3)} from the reference's; the "
        f"way back to it explains {number(metrics.way_back_fit, digits=3)} of the difference",
        tables=(table,),
        window=(rows[0][0], rows[-1][0]),
        signal="weights that fit the engine's log-probs",
    )


def _r(value: float | np.floating) -> float:
    return round(float(value), 6)
