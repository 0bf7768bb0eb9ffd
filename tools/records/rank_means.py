"""Means that were taken on each rank before they were gathered: what that makes of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firstbad.tools.run import FloatArray, IntArray


def local_first(values: FloatArray, rank: IntArray) -> Sequence[float]:
    """The figures that a batch may get when ranks are averaged first and gathered then.

    The plain mean of the means of the ranks; and the same where a rank that is short is filled up
    with the first row of the batch, or with its last, as samplers do. For equal numbers of rows on
    all ranks all three are the mean of the batch.

    Args:
        values: (R,) one figure per row.
        rank: (R,) rank that held each row.
    """
    own = [values[rank == r] for r in np.unique(rank)]
    size = max(map(len, own))
    filled = [
        [np.concatenate([v, np.full(size - len(v), values[fill])]) for v in own] for fill in (0, -1)
    ]
    return [float(np.mean([v.mean() for v in ranks])) for ranks in (own, *filled)]
