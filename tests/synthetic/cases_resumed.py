"""Resumes of which no file shows whether the optimizer came back; the updates do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from synthetic.cases import Case
from synthetic.cases_lookalikes import Undivided
from synthetic.cases_optimizer import BothLost, OptimizerLost
from synthetic.policy import Array
from synthetic.saving import Saving

STATE, CHECK = "opt.state_mismatch", "optimizer.state"


class FirstMomentsLost(Saving):
    """First moments begin at 0 at the resume; the count of steps goes on."""

    def resume(self) -> None:
        self.moments[0][:] = 0


class LargerRewards(Undivided, Saving):
    """From the resume on all rewards weigh three times as much, and gradients with them."""

    def total(self, parts: Mapping[str, Array]) -> Array:
        return (3.0 if self.after else 1.0) * super().total(parts)


def no_states(folder: Path) -> None:
    """Neither optimizer nor schedule was kept."""
    for file in folder.glob("checkpoint-*/*.pt"):
        file.unlink()


def nothing(folder: Path) -> None:
    """... nor anything of the recorder but metrics, settings and events."""
    no_states(folder)
    for file in folder.glob("steps/*/numerics.json"):
        file.unlink()


CASES = [
    Case("o30", OptimizerLost, "incident", STATE, (31, 31), {CHECK: "fail"}, files=no_states),
    Case("o31", BothLost, "incident", STATE, (31, 31), files=no_states),
    Case("o32", FirstMomentsLost, "incident", STATE, (31, 31), files=no_states),
    Case("o33", Saving, "healthy", checks={CHECK: "pass"}, twin_of=STATE, files=no_states),
    Case("o34", LargerRewards, "healthy", twin_of=STATE, files=no_states),
    Case("o35", OptimizerLost, "healthy", checks={CHECK: "inconclusive"}, files=nothing),
    Case(
        "o36",
        OptimizerLost,
        "undetermined",
        files=nothing,
        complaint="Since the resume it looks worse.",
    ),
]
