"""Storage precision: log-probs that lie on a grid coarser than their storage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, Capture, FloatArray, Run
from firstbad.tools.tokens import completion_end


@dataclass(frozen=True)
class Half:
    """A type of 16 bits."""

    name: str
    dropped_bits: int
    """Its value held in float32 has so many lower bits zero."""
    step: float
    """Of its numbers from 0.5 to 1: what computing with numbers near 1 leaves."""


BFLOAT16 = Half("bfloat16", 16, 2.0**-8)
FLOAT16 = Half("float16", 13, 2.0**-11)
FLOAT16_OVER_BF16_BITS = 3
"""A bfloat16 value held in float16 has at least its lower 3 mantissa bits zero."""
SMALL = 2.0**-4
"""Size below which either type is at least eight times finer than its step near 1."""
FEWEST = 60
"""Distinct log-probs of one capture below which no share is read."""
SMALLEST = 1e-3


class Grid(Dated):
    """Log-probs on the grid of a type of 16 bits."""

    n_values: int
    in_float16: bool
    """The grid is that of float16, eight times as fine; else that of bfloat16."""
    coarse_share: float
    """Share of captured log-probs that lie on it."""
    coarse_excess: float
    """That share less the one expected by chance in the storage type (0.125 in float16)."""
    n_small: int
    """Captured log-probs with a size of 0.001 to 0.0625, of coarse captures where there are any."""
    stepped_share: float | None
    """Of those: the log-prob, its probability or the inverse of it lies on multiples of 2^-8 (of
    2^-11 for float16). A probability, a sum or a difference computed in bfloat16 leaves that step
    near 1; storing the log-prob keeps 8 bits at every size and leaves less than one in eight."""
    storage_coarse: bool | None
    """Advantages, which no log-softmax touches, lie on the grid as well: the dump was stored in
    bfloat16, which says nothing of the computation. None where there are too few."""
    excess_worst: float
    """The same for the capture where it is largest."""
    n_ratios: int
    """Log-ratios of captures on the grid in which new and old log-probs differ somewhere."""
    ratio_zero_share: float | None
    """Of those: exactly 0. An update moves nearly all of them where the grid is fine enough."""
    ratio_leap: float | None
    """Median size of the others, nats: what a log-ratio leaps by."""


@tool
def check_precision(run: Run) -> Measured[Grid]:
    """Share of captured log-probs on the grid of bfloat16 or float16, capture by capture.

    bfloat16 keeps 8 significant bits: near abs(logp) 1 to 2 neighbouring values are 0.0078 apart,
    near 8 to 16 they are 0.0625 apart. Log-probs computed in it lie on its grid however they are
    stored later; by chance one in eight does in float16, hardly any in float32. Log-probs
    that were only stored in it keep their 8 bits near 0 as well, computed ones do not. After an
    update their differences are 0 or leap by a step of the grid. float16 keeps 11 bits; its grid is
    looked for where that of bfloat16 is not there.

    Cannot tell: a log-softmax whose result alone is rounded to bfloat16 from one that is stored so.
    """
    bfloat = _measure(run, BFLOAT16)
    if bfloat.metrics.excess_worst <= 0.5:
        other = _measure(run, FLOAT16)
        if other.metrics.excess_worst > 0.5:
            return other
    return bfloat


def _measure(run: Run, half: Half) -> Measured[Grid]:
    rows: list[tuple[int, int, float, float]] = []
    hits = total = 0
    near_zero: dict[int, FloatArray] = {}
    moved: list[FloatArray] = []
    for capture in run.captures:
        real = _real(run, capture)
        if real is None:
            continue
        values = np.asarray(capture.arrays["logp_new"])[real]
        found, n, chance = _on_grid(values, half)
        if n >= FEWEST and found / n - chance > 0.5:
            moved += _log_ratios(capture, real)
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
    ratios = np.concatenate([*moved, np.empty(0)])
    metrics = Grid(
        n_values=total,
        in_float16=half is FLOAT16,
        coarse_share=round(hits / total, 6),
        coarse_excess=round(hits / total - chance, 6),
        n_small=len(small),
        stepped_share=_stepped_share(small, half),
        storage_coarse=_storage_coarse(run, half),
        excess_worst=max(r[3] for r in rows),
        n_ratios=len(ratios),
        ratio_zero_share=round(float(np.mean(ratios == 0)), 6) if len(ratios) else None,
        ratio_leap=round(float(np.median(ratios[ratios > 0])), 6) if len(ratios) else None,
        last_good_step=good[-1] if good else None,
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    table = Table(
        title=f"log-probs on the {half.name} grid, per capture",
        columns=("step", "distinct log-probs", "share on the grid", "above chance"),
        rows=tuple(rows[:60]),
        cut_rows=max(0, len(rows) - 60),
    )
    text = (
        f"{percent(metrics.coarse_share)} of {total} captured log-probs on the {half.name} grid "
        f"({percent(chance)} expected by chance)"
    )
    if metrics.ratio_zero_share is not None:
        text += (
            f"; of {len(ratios)} log-ratios {percent(metrics.ratio_zero_share)} are exactly 0, the "
            f"others {number(metrics.ratio_leap)} nats in the middle"
        )
    return Measured(
        metrics,
        text,
        tables=(table,),
        window=(rows[0][0], rows[-1][0]),
        signal=f"log-probs on the {half.name} grid",
    )


def _real(run: Run, capture: Capture) -> BoolArray | None:
    """(R, W) completion tokens with a log-prob, unless that is stored in bfloat16; None without."""
    raw = capture.arrays.get("logp_new")
    if raw is None or "token_id" not in capture.arrays:
        return None
    if capture.storage_dtypes.get("logp_new") in ("bfloat16", "bf16"):
        return None  # the storage itself is coarse: nothing can be read off it
    real = completion_end(run, capture).real
    return real if np.shape(raw) == real.shape else None


def _log_ratios(capture: Capture, real: BoolArray) -> list[FloatArray]:
    """Sizes of new less old at completion tokens, one array; none where no token has moved."""
    new, old = capture.numbers("logp_new"), capture.numbers("logp_old")
    if new is None or old is None or old.shape != new.shape:
        return []
    size = np.abs(new - old)[real & (np.abs(new) > SMALLEST)]
    size = size[np.isfinite(size)]
    return [size] if (size > 0).any() else []


def _on_grid(values: npt.NDArray[np.generic], half: Half) -> tuple[int, int, float]:
    """Distinct values on the grid, distinct values, and the share expected by chance.

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
        if half is FLOAT16:
            return 0, len(values), 0.0  # its own storage says nothing
        bits = values.view(np.uint16) & np.uint16((1 << FLOAT16_OVER_BF16_BITS) - 1)
        return int((bits == 0).sum()), len(values), 0.125
    wide = values.view(np.uint32) & np.uint32((1 << half.dropped_bits) - 1)
    return int((wide == 0).sum()), len(values), 0.0


def _stepped_share(size: FloatArray, half: Half) -> float | None:
    """Of small abs(logp): on the steps of such numbers near 1, by the way that fits best."""
    if not len(size):
        return None
    ways = (size, np.expm1(size), -np.expm1(-size))  # difference, sum of exp, probability
    step = half.step
    off = [np.abs(x - step * np.maximum(1.0, np.round(x / step))) for x in ways]
    return round(max(float((d <= size * step).mean()) for d in off), 6)


def _storage_coarse(run: Run, half: Half) -> bool | None:
    hits = total = 0
    for capture in run.captures:
        advantage = capture.arrays.get("advantage")
        if advantage is not None:
            found, n, _ = _on_grid(np.asarray(advantage).ravel(), half)
            hits, total = hits + found, total + n
    return hits > 0.9 * total if total >= 30 else None
