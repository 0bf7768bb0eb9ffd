"""Do updates survive in the weights that are stored?"""

from __future__ import annotations

import re

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import percent
from firstbad.tools.readers.weights import Bits, Tensor, sampled_weights, weight_files
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

ON_GRID = 0.99
"""Share of 32-bit numbers that 16 bits would hold, above which the run kept 16 bits."""
STANDS = 0.3
"""Share of them that stay the same from one checkpoint to the next, which is dated."""
_LEFT_OUT = re.compile(r"embed|wte|wpe|lm_head|inv_freq|rotary|running_(mean|var)")
"""Rows of tokens that never occur, and buffers, do not train."""


class StoredWeights(Dated):
    """Weights that are stored with 32 bits, and how many of the bits are used."""

    n_checkpoints: int
    """Checkpoints with weights that were compared, the last two."""
    n_numbers: int
    """Numbers compared, some of each tensor."""
    on_grid_share: float
    """Of the numbers that differ: as bfloat16 would hold them, the lower 16 bits are 0."""
    unchanged_share: float
    """The same bit for bit in the checkpoint before."""
    step_before: int
    """Step of the checkpoint before, and of the last one."""
    step_after: int


@tool
def check_stored_weights(run: Run) -> Measured[StoredWeights]:
    """Whether weights that are stored with 32 bits hold more than bfloat16 does, and still move.

    Weights kept in bfloat16 between steps lose each update below half a unit of their last place.
    Then every number lies on the grid of bfloat16, and many are the same from one checkpoint to the
    next, while an update in 32 bits moves all of them.

    Cannot tell: anything from weights that are stored with 16 bits, beside which the trainer may
    keep a copy with 32.
    """
    saved = [c for c in run.checkpoints if weight_files(c)]
    if len(saved) < 2:
        raise NoData("no two checkpoints with weights")
    before, after = (_numbers(sampled_weights(c)) for c in saved[-2:])
    both = sorted(before.keys() & after.keys())
    if not both:
        raise NoData("no weights stored with 32 bits in two checkpoints")
    old, new = (np.concatenate([part[tensor] for tensor in both]) for part in (before, after))
    moved = old != new
    grid = float(np.mean((new[moved] & 0xFFFF) == 0)) if moved.any() else 0.0
    same = float(np.mean(~moved))
    absorbed = grid > ON_GRID and STANDS < same < 1
    metrics = StoredWeights(
        n_checkpoints=2,
        n_numbers=len(new),
        on_grid_share=round(grid, 6),
        unchanged_share=round(same, 6),
        step_before=saved[-2].step,
        step_after=saved[-1].step,
        first_bad_step=saved[-2].step + 1 if absorbed else None,
        from_start=absorbed,
    )
    return Measured(
        metrics,
        f"of {len(new)} weights {percent(same)} are the same at step {saved[-2].step} and at step "
        f"{saved[-1].step}, and {percent(grid)} of the others are numbers that bfloat16 holds",
        sources=run.sources,
        window=(saved[-2].step, saved[-1].step),
        signal="weights in the checkpoints",
    )


def _numbers(weights: dict[Tensor, Bits]) -> dict[Tensor, Bits]:
    return {t: b for t, b in weights.items() if t.dtype == "F32" and not _LEFT_OUT.search(t.name)}
