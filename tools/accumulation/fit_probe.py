"""Can the pipeline fit a few fixed answers at all?"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from firstbad.tools.accumulation.ledger import span_of
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

ENOUGH = 5
"""Updates after which a fit must show."""
FITTED = 0.05
"""Nats per token below which nothing is left to fit."""
FALL = 0.02
"""Share of the first value that it must lose."""


class FitProbe(Dated):
    """Mean negative log-likelihood of fixed completions, in nats per token."""

    n_probes: int
    """With updates enough, and something to fit at first."""
    nll_first: float
    nll_last: float
    fell: float
    """Share of the first value that is gone, in the probe where it is least."""
    n_updates: int


@tool
def read_fit_probe(run: Run) -> Measured[FitProbe]:
    """Plain likelihood of 4 to 8 fixed completions before and after some updates: it must fall.

    Cannot tell: whether advantage, ratio and clip are right; a fall shows that a gradient reaches
    the weights and that these are used, and no more.
    """
    found = [
        (p.step, first, last, int(n))
        for p in run.flight.probes_of("fit")
        if (first := p.number("nll_first")) is not None
        and (last := p.number("nll_last")) is not None
        and (n := p.number("n_updates")) is not None
        and n >= ENOUGH
        and first > FITTED
    ]
    if not found:
        raise NoData("no probe `fit` with five updates or more was recorded")
    steps = [step for step, *_ in found]
    bad = np.array([1 - last / first < FALL for _, first, last, _ in found])
    _, first, last, n = min(found, key=lambda p: 1 - p[2] / p[1])
    metrics = FitProbe(
        n_probes=len(found),
        nll_first=round(first, 6),
        nll_last=round(last, 6),
        fell=round(max(-1e6, 1 - last / first), 6),
        n_updates=n,
        **asdict(span_of(steps, bad)),
    )
    return Measured(
        metrics,
        f"likelihood of fixed answers in {len(found)} probes: {number(first, digits=3)} -> "
        f"{number(last, digits=3)} nats per token after {n} updates",
        signal="likelihood of fixed answers",
    )
