"""Steps without a delivery of weights: after a resume, in the middle, on purpose, or unwritten."""

from __future__ import annotations

from pathlib import Path

from firstbad_recorder import Recorder
from synthetic.cases import Case
from synthetic.cases_probability import Async, Ledger
from synthetic.policy import Array
from synthetic.trainer import Batch


class Paused(Ledger):
    """For ten steps no weights are delivered; rollouts claim the newest ones all the same."""

    until = 41

    def delivers(self) -> bool:
        return not self.s.onset <= self.step < self.until

    def generate(self, step: int) -> Batch:
        self.engine_version = self.version
        return super().generate(step)


class FirstMissing(Paused):
    """After a resume the engine holds the weights that training began with, for five steps."""

    until = 36

    def generate(self, step: int) -> Batch:
        if not self.delivers():
            self.engine = self.reference.copy()
        return super().generate(step)

    def extra(self, recorder: Recorder) -> None:
        if self.step == self.s.onset - 1:
            recorder.event("resume", self.s.onset, "resumed from checkpoint-30")


class Unseen(Paused):
    """... and neither log-probs of the engine nor entropies are on record."""

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        return {"logp_engine": None, "entropy": None, "varentropy": None, "logp_ref": None}

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {k: v for k, v in row.items() if k != "logprob_diff_mean"}


class EveryFifth(Async):
    """Look-alike: weights are delivered at every fifth step, and rollouts say so."""

    allowed = 5

    def delivers(self) -> bool:
        return self.step % 5 == 1

    def sync(self) -> dict[str, object]:
        self.engine, self.engine_version = self.table.copy(), self.version
        return {}

    def old_table(self) -> Array:
        return self.engine


def _lines_lost(folder: Path) -> None:
    """The ledger of ten steps is gone; the deliveries were made."""
    ledger = folder / "syncs.jsonl"
    lines = ledger.read_text(encoding="utf-8").splitlines(keepends=True)
    ledger.write_text("".join(lines[:30] + lines[40:]), encoding="utf-8")


CHECK = "probability.deliveries_go_on"

CASES = [
    Case("p70", Paused, "incident", "prob.weight_sync", (31, 31), {CHECK: "fail"},
         twin_of="infra.resume"),
    Case("p71", FirstMissing, "incident", "infra.resume", (31, 31), {CHECK: "fail"}),
    Case("p72", Unseen, "undetermined", checks={CHECK: "inconclusive"}),
    Case("p73", EveryFifth, "healthy", checks={CHECK: "pass"}, twin_of="prob.weight_sync"),
    Case("p74", Ledger, "healthy", checks={CHECK: "pass"}, twin_of="prob.weight_sync",
         files=_lines_lost),
]  # fmt: skip
