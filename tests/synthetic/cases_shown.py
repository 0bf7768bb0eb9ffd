"""What is only in the ledger or only a note: ratios that no log holds, a clamp behind exp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synthetic.cases import Case
from synthetic.cases_numerics import Trailed
from synthetic.cases_steps import CHECK, REUSE, Shared
from synthetic.trainer import Batch


class LedgerAlone(Shared):
    """Neither ratios nor clip fractions are logged."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        """See the class."""
        left_out = ("ratio_mean", "ratio_max", "clip_frac_total")
        return {name: value for name, value in row.items() if name not in left_out}


class ClampBehindExp(Trailed):
    """A clamp of the ratio for numerics, which nothing reaches."""

    def clamps(self, batch: Batch, found: Mapping[str, Any]) -> list[dict[str, object]]:
        """See the class."""
        ratio = found["everywhere"]["exp"][batch.loss_mask]
        hits = int((ratio >= 10.0).sum())
        return [{"name": "cap", "place": "ratio", "low": None, "high": 10.0, "n": ratio.size,
                 "n_hit": hits}]  # fmt: skip


CASES = [
    Case(
        "o70",
        lambda: LedgerAlone(rate=0.2, updates=8, steps=25, prompts=3),
        "incident",
        REUSE,
        checks={CHECK: "fail"},
        says="the share of clipped tokens grows from",
    ),
    Case("o71", lambda: LedgerAlone(rate=0.005, updates=8, steps=25), "healthy", twin_of=REUSE),
    Case("n87", ClampBehindExp, "healthy", twin_of="num.exp_overflow"),
]
