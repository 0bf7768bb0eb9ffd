"""Logged ratios whose logarithms lie on a coarse grid."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run
from firstbad.tools.stats import first_of_run

STEPS = tuple(2.0**-k for k in range(5, 12))
"""Steps of a grid that are tried, the coarsest first, nats. bfloat16 numbers between 1/2 and 1 lie
2^-8 apart, those of float16 2^-11."""
NEAR = 4e-6
"""Distance from the grid that an exp in 32 bits and its logarithm leave."""
MOST = 0.9
"""Share of the ratios that must lie on a grid."""


class RatioGrid(Dated):
    """Extreme ratios of the steps, as log-ratios."""

    n_values: int
    """Logged `ratio_max` and `ratio_min` that leave 1 by more than the finest grid."""
    n_distinct: int
    """Values among those: a few that return are a clamp's, or a policy's that hardly moves."""
    on_grid_share: float
    """Of those: multiples of `grid_nats`."""
    chance_share: float
    """What of any numbers would lie so near to that grid."""
    grid_nats: float


@tool
def check_ratio_grid(run: Run) -> Measured[RatioGrid]:
    """Whether the logarithms of logged extreme ratios are multiples of one step.

    The difference of two log-probs that have 16 bits is a multiple of their step: 0.0039 nats for
    bfloat16 numbers above 1/2, 0.0005 for those of float16. With 32 bits it may be anything. The
    coarsest grid is reported that holds nine in ten of the ratios, else the finest.

    Cannot tell: ratios that were averaged or rounded when they were logged.
    """
    signals = [s for n in ("ratio_max", "ratio_min") if (s := run.signals.get(n)) is not None]
    if not signals:
        raise NoData("no ratio_max or ratio_min is logged")
    steps = np.concatenate([s.steps for s in signals])
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.abs(np.log(np.concatenate([s.values for s in signals])))
    use = np.isfinite(size) & (size > STEPS[-1] / 2)
    steps, size = steps[use], size[use]
    if not len(size):
        one = RatioGrid(
            n_values=0, n_distinct=0, on_grid_share=0.0, chance_share=0.0, grid_nats=STEPS[-1]
        )
        return Measured(one, "no logged ratio leaves 1")
    step = next((s for s in STEPS if np.mean(_on(size, s)) > MOST), STEPS[-1])
    on = _on(size, step)
    order = np.argsort(steps, kind="stable")
    start = first_of_run(on[order].tolist(), length=min(6, len(on)))
    coarse = on.mean() > MOST and start is not None
    first = int(steps[order][start]) if coarse and start is not None else None
    good = [int(s) for s in np.unique(steps) if first is not None and s < first]
    metrics = RatioGrid(
        n_values=len(size),
        n_distinct=len(np.unique(np.round(size, 5))),
        on_grid_share=round(float(on.mean()), 6),
        chance_share=round(2 * NEAR / step, 6),
        grid_nats=step,
        last_good_step=good[-1] if good else None,
        first_bad_step=first,
        from_start=first is not None and not good,
    )
    return Measured(
        metrics,
        f"{percent(metrics.on_grid_share)} of {len(size)} logged extreme ratios are multiples of "
        f"{step:.3g} nats ({percent(metrics.chance_share)} expected by chance)",
        window=(int(steps.min()), int(steps.max())),
        signal="log-ratios on a coarse grid",
    )


def _on(size: FloatArray, step: float) -> FloatArray:
    """(N,) 1 where a size is a multiple of a step, and not 0 times."""
    times = np.round(size / step)
    found: FloatArray = ((np.abs(size - times * step) <= NEAR) & (times > 0)).astype(float)
    return found
