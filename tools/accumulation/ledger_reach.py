"""Which micro-batches, or ranks, does the size of the whole gradient depend on?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from firstbad.tools.accumulation.ledger import LARGEST, Span, Update, updates_of
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.flight import Microbatch
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, FloatArray, Run

LEAST = 12
"""Updates that a fit needs at least, and ..."""
PER_PLACE = 4
"""... how many for each of the places that it tells apart."""
ERRORS = 3.0
"""Standard errors between a share and its upper bound."""
SMALL = 0.3
"""Shares between -0.3 and 0.3, with their errors, are of places that are told as lost, if all other
shares are above. The largest share is 1."""
COUNTS = 0.01
"""A place that has less than this part of all squared norms is too small to tell."""

PLACES: dict[str, Callable[[Microbatch], int | None]] = {
    "rank": lambda part: part.rank,
    "micro-batch": lambda part: part.microbatch,
}


class MicrobatchReach(Dated):
    """Shares of the micro-batches' squared norms in that of the whole gradient.

    Each is the slope of the one against the other over updates: alike for all that reach the sum,
    0 for what does not.
    """

    n_updates: int
    """Updates of the fit: those since the onset, or all."""
    by_rank: bool
    """Places are ranks; False: the micro-batches of each rank, in order."""
    n_places: int
    n_lost: int
    """Places without a share."""
    all_there: bool
    """Every rank and every micro-batch of a rank surely has one."""
    share: float
    """Largest share of these, or the least of all where none is lost; the largest of all is 1."""
    share_size: float
    """Its size with its error."""


@dataclass(frozen=True)
class _Fit:
    """(K,) shares of the places, the largest being 1, and their standard errors."""

    share: FloatArray
    error: FloatArray

    @property
    def size(self) -> FloatArray:
        """Sizes of the shares with their errors."""
        return np.asarray(np.abs(self.share) + ERRORS * self.error)

    @property
    def lost(self) -> BoolArray:
        """Places that have no share, where every other one surely has one."""
        lost = self.size < SMALL
        return np.asarray(lost & (lost | self.there).all())

    @property
    def there(self) -> BoolArray:
        """Places that surely have a share."""
        return np.asarray(self.share - ERRORS * self.error > SMALL)


@tool
def measure_microbatch_reach(run: Run) -> Measured[MicrobatchReach]:
    """Squared gradient norm of each update against those of its ranks and of their micro-batches.

    The squared norm of a sum grows with that of each of its parts. Over updates, a part on which
    it does not depend is not in the sum, however many others there are and whatever factor or
    average joins them.

    Cannot tell: parts whose norms hardly vary, or vary together; nor a norm that was taken before
    ranks were joined.
    """
    updates = [
        u
        for u in updates_of(run)
        if (u.norm or 0.0) > 1 / LARGEST
        and len(u.parts) > 1
        and all(p.grad_norm is not None for p in u.parts)
    ]
    found = [m for name in PLACES if (m := _by_place(updates, name)) is not None]
    if not found:
        raise NoData("too few updates with gradient norms of several micro-batches and of the step")
    metrics = min(found, key=lambda m: (m.n_lost == 0, m.all_there))
    kind = "ranks" if metrics.by_rank else "micro-batches of a rank"
    text = f"{metrics.n_updates} updates do not tell whether the gradient norm goes with all {kind}"
    if metrics.all_there:
        text = f"{metrics.n_updates} updates: the gradient norm goes with those of all {kind}"
    if metrics.n_lost:
        text = (
            f"{metrics.n_updates} updates: the gradient norm does not go with those of "
            f"{metrics.n_lost} of {metrics.n_places} {kind} (share "
            f"{number(metrics.share, digits=2)}, with its error "
            f"{number(metrics.share_size, digits=2)}, where the largest is 1)"
        )
    return Measured(metrics, text, signal="gradient norm against its micro-batches")


def _by_place(updates: Sequence[Update], name: str) -> MicrobatchReach | None:
    """What a fit by these places finds; None where there are too few updates or places."""
    place = PLACES[name]
    names = sorted({k for u in updates for p in u.parts if (k := place(p)) is not None})
    parts = np.zeros((len(updates), len(names)))
    for row, update in enumerate(updates):
        for part in update.parts:
            if (k := place(part)) is not None:
                parts[row, names.index(k)] += (part.grad_norm or 0.0) ** 2
    parts = parts[:, parts.sum(axis=0) > COUNTS * parts.sum()]
    whole = np.array([(u.norm or 0.0) ** 2 for u in updates])
    late = _fit(parts[len(updates) // 2 :], whole[len(updates) // 2 :])
    lost = np.zeros(parts.shape[1], bool) if late is None else late.lost
    earliest, first, latest = _onset(parts, whole, lost) if lost.any() else (0, 0, 0)
    fit = _fit(parts[first:], whole[first:])
    if fit is None:
        return None
    steps = [u.step for u in updates]
    span = Span()
    if fit.lost.any():
        before = steps[earliest - 1] if earliest else None
        sampled = before is not None and steps[latest] - before > 1
        span = Span(before, steps[latest if earliest else 0], None, not earliest, sampled)
    read = fit.lost if fit.lost.any() else fit.share == fit.share.min()
    return MicrobatchReach(
        n_updates=len(updates) - first,
        by_rank=name == "rank",
        n_places=parts.shape[1],
        n_lost=int(fit.lost.sum()),
        all_there=bool(fit.there.all()),
        share=round(float(fit.share[read].max()), 6),
        share_size=round(float(fit.size[read].max()), 6),
        **asdict(span),
    )


def _fit(parts: FloatArray, whole: FloatArray) -> _Fit | None:
    """Least squares of relative residuals; (U, K) squared norms of the places, (U,) of the whole.

    None where updates are too few or places vary together.
    """
    n, k = parts.shape
    if k < 2 or n < max(LEAST, PER_PLACE * k):
        return None
    relative = parts / whole[:, None]
    scale = np.linalg.norm(relative, axis=0)
    if not scale.all() or np.linalg.matrix_rank(relative / scale) < k:
        return None
    inverse = np.linalg.pinv(relative)
    slope = inverse @ np.ones(n)
    largest = float(slope.max())
    if largest <= 0:
        return None
    left = 1 - relative @ slope
    error = np.sqrt((inverse**2).sum(axis=1) * float(left @ left) / (n - k))
    return _Fit(slope / largest, error / largest)


def _onset(parts: FloatArray, whole: FloatArray, lost: BoolArray) -> tuple[int, int, int]:
    """Earliest, best and latest update from which on the lost places are left out of the sum.

    Between the first and the last the misfit is the least but for its error.
    """
    every, kept = parts.sum(axis=1) / whole, parts[:, ~lost].sum(axis=1) / whole
    misfits = np.empty(len(whole))
    for first in range(len(whole)):
        sums = np.concatenate([every[:first], kept[first:]])
        misfits[first] = ((1 - sums.sum() / (sums @ sums) * sums) ** 2).sum()
    least = misfits.min()
    near = np.flatnonzero(misfits <= least * (1 + ERRORS**2 / len(whole)))
    return int(near[0]), int(misfits.argmin()), int(near[-1])
