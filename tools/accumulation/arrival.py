"""Does a gradient arrive: norms of exactly 0, and a KL to the reference that never leaves 0."""

from __future__ import annotations

import numpy as np

from firstbad.tools.accumulation.norms import contrast_of
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, Run, Signal

LASTING = 10
"""Steps in a row without a gradient that are dated."""
STILL = 0.9
"""Share of steps with KL 0 that is dated."""


class Arrival(Dated):
    """Steps that must have a gradient, and whether they had one."""

    n_steps: int
    """Steps with a learning rate above 0 and rewards that differ, or a KL term where no rollouts
    tell."""
    zero_run: int
    """Most of them in a row with a gradient norm of exactly 0."""
    kl_still_share: float | None
    """Of steps after the fifth with a learning rate above 0: KL to the reference is below 1e-9.
    None where beta is 0, no KL is logged, or the log is rounded to four digits."""


@tool
def check_arrival(run: Run) -> Measured[Arrival]:
    """Whether a gradient reaches the parameters that are sampled and scored.

    Without contrast inside the groups and without a KL term the gradient is 0 rightly, so such
    steps are left out. A KL of 0 beside a norm above 0 shows that the steps move something else.

    Cannot tell: a part of the parameters that is frozen; nor weights that stop moving later on
    while the norm is above 0, since KL stays where it is then.
    """
    norm = run.signals.get("grad_norm_preclip")
    if norm is None:
        raise NoData("no logged gradient norms")
    due = _due(run, norm)
    steps, zero = norm.steps[due], norm.values[due] == 0
    if len(steps) < LASTING:
        raise NoData(f"fewer than {LASTING} gradient norms of steps that must have a gradient")
    length, start = _longest(zero)
    still = _kl_still(run, norm)
    zero_lasts = length >= LASTING
    moving = norm.steps[_moving(run, norm)]
    first = int(steps[start]) if zero_lasts else None
    if first is None and still is not None and still > STILL:
        first = int(moving[0])
    from_start = first is not None and first == int(steps[0])
    metrics = Arrival(
        n_steps=len(steps),
        zero_run=length,
        kl_still_share=still,
        last_good_step=None if first is None or from_start else int(steps[start - 1]),
        first_bad_step=first,
        from_start=from_start,
    )
    return Measured(
        metrics,
        f"{len(steps)} steps that must have a gradient: {int(zero.sum())} with a norm of 0, "
        f"{length} in a row"
        + ("" if still is None else f"; KL to the reference is 0 in {100 * still:.0f} %"),
        sources=run.sources,
        signal="gradient norm of 0" if zero_lasts else "KL to the reference",
    )


def _due(run: Run, norm: Signal) -> BoolArray:
    contrast = contrast_of(run, norm)
    known = np.isfinite(contrast)
    pulls = (run.config.number("beta") or 0.0) > 0
    due: BoolArray = _moving(run, norm) & np.where(known, contrast > 0.1, pulls)
    return due


def _moving(run: Run, signal: Signal) -> BoolArray:
    """Whether the learning rate is above 0 (or unknown) at each step of a signal."""
    rate = run.signals.get("learning_rate")
    return np.array([rate is None or (rate.at(int(s)) or 0.0) > 0 for s in signal.steps], bool)


def _longest(flags: BoolArray) -> tuple[int, int]:
    """Length and first index of the longest run of set flags."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(lengths):
        return 0, 0
    best = int(np.argmax(lengths))
    return int(lengths[best]), int(starts[best])


def _kl_still(run: Run, norm: Signal) -> float | None:
    kl = run.signals.get("kl_ref")
    if kl is None or not run.config.number("beta"):
        return None
    if np.allclose(norm.values, np.round(norm.values, 4), rtol=0, atol=1e-9) and norm.values.any():
        return None
    use = _moving(run, kl) & (np.arange(len(kl.values)) >= 5)
    return round(float((np.abs(kl.values[use]) < 1e-9).mean()), 6) if use.any() else None
