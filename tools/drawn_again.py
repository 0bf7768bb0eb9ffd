"""Could two batches have the same texts by chance? Where few short texts are left, they could."""

from __future__ import annotations

from collections import Counter

import numpy as np

from firstbad.tools.run import RolloutBatch

BY_CHANCE = 12.0
"""Surprise, in nats, below which a batch can be drawn a second time."""
NATS_PER_CHARACTER = 0.1
"""Of a text that no other sample of its prompt has: about what sampled text carries."""
MOST_NATS = 10.0
"""... at most, for one text."""


def may_be_drawn_again(batch: RolloutBatch) -> bool:
    """Whether the policy that gave these completions may well give all of them once more."""
    return surprise(batch) < BY_CHANCE


def surprise(batch: RolloutBatch) -> float:
    """Nats: -log of the chance that sampling gives these completions again, each at its place.

    A text's chance is its share among the samples of its prompt. One that stands alone there is
    rarer than that by what its length says.
    """
    rows = list(zip(batch.prompts, batch.completions, strict=False))  # rows may have no texts
    alike, asked = Counter(rows), Counter(batch.prompts)
    nats = 0.0
    for row in rows:
        nats -= float(np.log(alike[row] / asked[row[0]]))
        if alike[row] == 1:
            nats += min(NATS_PER_CHARACTER * len(row[1]), MOST_NATS)
    return nats
