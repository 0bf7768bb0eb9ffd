"""Storage precision: log-probs that lie on a grid coarser than their storage."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Capture, Run
from firstbad.tools.tokens import completion_end

BF16_DROPPED_BITS = 16
"""A bfloat16 value held in float32 has its lower 16 bits zero."""
FLOAT16_OVER_BF16_BITS = 3
"""A bfloat16 value held in float16 has at least its lower 3 mantissa bits zero."""
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
    stored later; by chance one in eight does in float16, hardly any in float32.

    Cannot tell: anything where the storage itself is bfloat16.
    """
    rows: list[tuple[int, int, float, float]] = []
    hits = total = 0
    for capture in run.captures:
        found, n, chance = _coarse(run, capture)
        hits, total = hits + found, total + n
        if n >= FEWEST:
            rows.append((capture.step, n, round(found / n, 6), round(found / n - chance, 6)))
    if not rows:
        raise NoData(f"no capture with {FEWEST} log-probs in a storage finer than bfloat16")
    bad = [step for step, _, _, excess in rows if excess > 0.5]
    good = [step for step, *_ in rows if not bad or step < bad[0]]
    chance = rows[0][2] - rows[0][3]
    metrics = Grid(
        n_values=total,
        coarse_share=round(hits / total, 6),
        coarse_excess=round(hits / total - chance, 6),
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


def _coarse(run: Run, capture: Capture) -> tuple[int, int, float]:
    """Log-probs on the bfloat16 grid, log-probs looked at, and the share expected by chance."""
    raw = capture.arrays.get("logp_new")
    if raw is None or "token_id" not in capture.arrays:
        return 0, 0, 0.0
    if capture.storage_dtypes.get("logp_new") in ("bfloat16", "bf16"):
        return 0, 0, 0.0  # the storage itself is coarse: nothing can be read off it
    real = completion_end(run, capture).real
    values = np.asarray(raw)
    return _on_grid(values[real]) if values.shape == real.shape else (0, 0, 0.0)


def _on_grid(values: npt.NDArray[np.generic]) -> tuple[int, int, float]:
    """Distinct values on the bfloat16 grid, distinct values, and the share expected by chance.

    Distinct values of a usable size: a policy that is sure repeats a few, and the smallest ones
    have hardly any bits left in float16.
    """
    if values.dtype not in (np.float16, np.float32):
        return 0, 0, 0.0
    numbers = np.asarray(values, np.float64)
    values = np.unique(values[np.isfinite(numbers) & (np.abs(numbers) > SMALLEST)])
    if values.dtype == np.float16:
        bits = values.view(np.uint16) & np.uint16((1 << FLOAT16_OVER_BF16_BITS) - 1)
        return int((bits == 0).sum()), len(values), 0.125
    wide = values.view(np.uint32) & np.uint32((1 << BF16_DROPPED_BITS) - 1)
    return int((wide == 0).sum()), len(values), 0.0


def _storage_coarse(run: Run) -> bool | None:
    hits = total = 0
    for capture in run.captures:
        advantage = capture.arrays.get("advantage")
        if advantage is not None:
            found, n, _ = _on_grid(np.asarray(advantage).ravel())
            hits, total = hits + found, total + n
    return hits > 0.9 * total if total >= 30 else None
