"""Storage precision: log-probs that lie on a grid coarser than their storage."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Capture, FloatArray, Run
from firstbad.tools.tokens import completion_end

BF16_DROPPED_BITS = 16
"""A bfloat16 value held in float32 has its lower 16 bits zero."""
FLOAT16_OVER_BF16_BITS = 3
"""A bfloat16 value held in float16 has at least its lower 3 mantissa bits zero."""
STEP = 2.0**-8
"""Step of bfloat16 numbers from 0.5 to 1: what computing with numbers near 1 leaves."""
SMALL = 2.0**-4
"""Size below which bfloat16 itself is at least eight times finer than that."""
FEWEST = 60
"""Distinct log-probs of one capture below which no share is read."""
SMALLEST = 1e-3


class Grid(Dated):
    """Log-probs on the bfloat16 grid."""

    n_values: int
    coarse_share: float
    """Share of captured log-probs that lie on the bfloat16 grid."""
    coarse_excess: float
    """That share less the one expected by chance in the storage type (0.125 in float16)."""
    n_small: int
    """Captured log-probs with a size of 0.001 to 0.0625, of coarse captures where there are any."""
    stepped_share: float | None
    """Of those: the log-prob, its probability or the inverse of it lies on multiples of 2^-8. A
    probability, a sum or a difference computed in bfloat16 leaves that step near 1; storing the
    log-prob in bfloat16 keeps 8 bits at every size and leaves less than one in eight there."""
    storage_coarse: bool | None
    """Advantages, which no log-softmax touches, lie on the grid as well: the dump was stored in
    bfloat16, which says nothing of the computation. None where there are too few."""
    excess_worst: float
    """The same for the capture where it is largest."""


@tool
def check_precision(run: Run) -> Measured[Grid]:
    """Share of captured log-probs that lie on the bfloat16 grid, capture by capture.

    bfloat16 keeps 8 significant bits: near abs(logp) 1 to 2 neighbouring values are 0.0078 apart,
    near 8 to 16 they are 0.0625 apart. Log-probs computed in it lie on its grid however they are
    stored later; by chance one in eight does in float16, hardly any in float32. Log-probs
    that were only stored in it keep their 8 bits near 0 as well, computed ones do not.

    Cannot tell: a log-softmax whose result alone is rounded to bfloat16 from one that is stored so.
    """
    rows: list[tuple[int, int, float, float]] = []
    hits = total = 0
    near_zero: dict[int, FloatArray] = {}
    for capture in run.captures:
        values = _logprobs(run, capture)
        if values is None:
            continue
        found, n, chance = _on_grid(values)
        hits, total = hits + found, total + n
        size = np.abs(np.asarray(values, np.float64))
        near_zero[capture.step] = size[(size > SMALLEST) & (size < SMALL)]
        if n >= FEWEST:
            rows.append((capture.step, n, round(found / n, 6), round(found / n - chance, 6)))
    if not rows:
        raise NoData(f"no capture with {FEWEST} log-probs in a storage finer than bfloat16")
    bad = [step for step, _, _, excess in rows if excess > 0.5]
    good = [step for step, *_ in rows if not bad or step < bad[0]]
    chance = rows[0][2] - rows[0][3]
    # Pooled with captures from before the fault, its steps would drown.
    small = np.concatenate([near_zero[step] for step in bad or near_zero])
    metrics = Grid(
        n_values=total,
        coarse_share=round(hits / total, 6),
        coarse_excess=round(hits / total - chance, 6),
        n_small=len(small),
        stepped_share=_stepped_share(small),
        storage_coarse=_storage_coarse(run),
        excess_worst=max(r[3] for r in rows),
        last_good_step=good[-1] if good else None,
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    table = Table(
        title="log-probs on the bfloat16 grid, per capture",
        columns=("step", "distinct log-probs", "share on the grid", "above chance"),
        rows=tuple(rows[:60]),
        cut_rows=max(0, len(rows) - 60),
    )
    return Measured(
        metrics,
        f"{percent(metrics.coarse_share)} of {total} captured log-probs on the bfloat16 grid "
        f"({percent(chance)} expected by chance)",
        tables=(table,),
        window=(rows[0][0], rows[-1][0]),
        signal="log-probs on the bfloat16 grid",
    )


def _logprobs(run: Run, capture: Capture) -> npt.NDArray[np.generic] | None:
    """Log-probs of the completion tokens as stored, unless that is in bfloat16; None without."""
    raw = capture.arrays.get("logp_new")
    if raw is None or "token_id" not in capture.arrays:
        return None
    if capture.storage_dtypes.get("logp_new") in ("bfloat16", "bf16"):
        return None  # the storage itself is coarse: nothing can be read off it
    real = completion_end(run, capture).real
    values = np.asarray(raw)
    return values[real] if values.shape == real.shape else None


def _on_grid(values: npt.NDArray[np.generic]) -> tuple[int, int, float]:
    """Distinct values on the bfloat16 grid, distinct values, and the share expected by chance.

    Distinct values of a usable size: a policy that is sure repeats a few, and the smallest ones
    have hardly any bits left in float16.
    """
    if values.dtype == np.float64:
        values = values.astype(np.float32)  # the grid is far coarser than what is lost
    if values.dtype not in (np.float16, np.float32):
        return 0, 0, 0.0
    numbers = np.asarray(values, np.float64)
    values = np.unique(values[np.isfinite(numbers) & (np.abs(numbers) > SMALLEST)])
    if values.dtype == np.float16:
        bits = values.view(np.uint16) & np.uint16((1 << FLOAT16_OVER_BF16_BITS) - 1)
        return int((bits == 0).sum()), len(values), 0.125
    wide = values.view(np.uint32) & np.uint32((1 << BF16_DROPPED_BITS) - 1)
    return int((wide == 0).sum()), len(values), 0.0


def _stepped_share(size: FloatArray) -> float | None:
    """Of small abs(logp): on the steps of bfloat16 numbers near 1, by the way that fits best."""
    if not len(size):
        return None
    ways = (size, np.expm1(size), -np.expm1(-size))  # difference, sum of exp, probability
    off = [np.abs(x - STEP * np.maximum(1.0, np.round(x / STEP))) for x in ways]
    return round(max(float((d <= size * STEP).mean()) for d in off), 6)


def _storage_coarse(run: Run) -> bool | None:
    hits = total = 0
    for capture in run.captures:
        advantage = capture.arrays.get("advantage")
        if advantage is not None:
            found, n, _ = _on_grid(np.asarray(advantage).ravel())
            hits, total = hits + found, total + n
    return hits > 0.9 * total if total >= 30 else None
