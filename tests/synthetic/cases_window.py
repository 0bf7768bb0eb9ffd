"""The window: what moves first, steps that were kept, and runs that only take longer."""

from __future__ import annotations

from synthetic.cases import Case
from synthetic.trainer import Batch, Trainer


class Slower(Trainer):
    """From the onset on a step takes four times as long, with nothing else changed."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        factor = 4.0 if self.after else 1.0
        return {**row, "step_time": row["step_time"] * factor, "phase_seconds/reward": factor - 0.5}


class Kept(Trainer):
    """A step far too bold at the onset; the recorder keeps three states around its alarm."""

    def rate(self) -> float:
        return self.s.rate * (25.0 if self.after else 1.0)

    def about(self, batch: Batch) -> dict[str, object]:
        names = {self.s.onset - 2: "last_good", self.s.onset + 3: "first_bad"}
        names[self.s.onset + 4] = "after"
        return {
            **super().about(batch),
            "kept": names.get(self.step, "baseline"),
            "batch": f"b{self.step}",
        }


CASES = [
    Case("y1", lambda: Slower(seed=5), "healthy", complaint="the run became slow at step 31"),
    Case("y2", lambda: Kept(seed=6), "incident", "opt.lr_jump", first_bad=(31, 32)),
]
