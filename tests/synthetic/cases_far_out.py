"""One step with an answer far longer than all others, of which the trainer saw the beginning."""

from __future__ import annotations

from synthetic.cases import Case
from synthetic.cases_accumulation import Scaled
from synthetic.trainer import Batch, Trainer

WORDS = 66_000
"""Of an answer of 200,000 characters."""


class RanOn(Trainer):
    """At one step a server went on sampling; rollouts and lengths hold all, the loss what fits."""

    at = 20

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        """See the class."""
        rows = super().rollout_rows(batch)
        if batch.step == self.at:
            row = max(rows, key=lambda r: float(str(r["advantage"])))
            row["completion"] = "so " * WORDS + str(row["completion"])
            row["n_tokens"] = WORDS
        return rows

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        """See the class."""
        if self.step != self.at:
            return row
        more = WORDS / (self.s.prompts * self.s.group)
        return {
            **row,
            "completion_length_mean": row["completion_length_mean"] + more,
            "completion_length_max": float(WORDS),
        }


class RanOnScaled(RanOn, Scaled):
    """The same step in a run whose loss carries a factor from the onset on."""


CASES = [
    Case("a40", lambda: RanOn(steps=31, beta=0.0), "healthy", twin_of="grad.accumulation_scale"),
    Case("a41", RanOnScaled, "incident", "grad.accumulation_scale", (31, 31)),
]
