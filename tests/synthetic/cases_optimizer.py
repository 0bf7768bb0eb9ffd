"""Faults of optimizer, schedule, clipping and value function, and what looks like them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array
from synthetic.saving import Saving
from synthetic.trainer import Batch, Trainer


class OptimizerLost(Saving):
    """Adam begins anew at the resume, the schedule goes on."""

    def resume(self) -> None:
        self.moments = np.zeros_like(self.table), np.zeros_like(self.table)
        self.count = 0


class BothLost(OptimizerLost):
    """Neither file is there: optimizer and schedule begin anew."""

    def resume(self) -> None:
        super().resume()
        self.planned = 0


class OptimizerOfLaterStep(Saving):
    """The optimizer that is loaded is that of a longer run from the same start."""

    def resume(self) -> None:
        self.count += 25


class ScheduleLost(Saving):
    """The schedule, a linear decay, begins anew at the resume."""

    def config(self) -> dict[str, object]:
        return {**super().config(), "lr_scheduler_type": "linear"}

    def rate(self) -> float:
        return self.s.rate * max(0.0, 1 - self.planned / self.s.steps)

    def resume(self) -> None:
        self.planned = 0


class ScheduleKept(ScheduleLost):
    """The same decay, whose schedule comes back."""

    def resume(self) -> None:
        pass


class SavedLate(Saving):
    """A checkpoint whose optimizer was written 20 steps before its weights; nobody resumes it."""

    resumed_at = None

    def saved_counts(self) -> tuple[int, int]:
        return (20, 40) if self.step == 40 else super().saved_counts()


class RaisedRate(SavedLate):
    """The rate is ten times as large from step 45 on; checkpoint-40 was saved late."""

    def rate(self) -> float:
        return self.s.rate * (10 if self.step >= 45 else 1)


class SecondMomentsLost(Saving):
    """The second moments of a third of the parameters are written as 0."""

    def saved_moments(self) -> tuple[Any, Any]:
        first, second = super().saved_moments()
        second[: len(second) // 3] = 0 if self.step > self.s.onset else second[: len(second) // 3]
        return first, second


class Coarse(Saving):
    """Moments pass through bfloat16 when they are saved, and the run goes on from them."""

    resumed_at: int | None = 41

    def saved_moments(self) -> tuple[Any, Any]:
        return _cut(self.moments[0]), _cut(self.moments[1])

    def resume(self) -> None:
        self.moments = tuple(part.astype(np.float64) for part in self.saved_moments())


class CoarseUnused(Coarse):
    """The same files, written on the side: the run goes on from what it has in memory."""

    resumed_at = None


class Blank(Saving):
    """The moments are lost on the way to the file, the counts are not."""

    def saved_moments(self) -> tuple[Any, Any]:
        return np.zeros_like(self.table, np.float32), np.zeros_like(self.table, np.float32)


class SecondMomentsSmaller(Saving):
    """Second moments come back at the resume as those of gradients a thousandth as large."""

    resumed_at = 41

    def resume(self) -> None:
        self.moments[1][:] /= 1e6


class SecondMomentsReset(Saving):
    """Second moments begin at 0 at the resume; first moments and counts do not. It overflows."""

    resumed_at = 41

    def resume(self) -> None:
        self.moments[1][:] = 0

    def run(self, folder: Path) -> Path:
        with np.errstate(all="ignore"):
            return super().run(folder)


class OtherReference(Saving):
    """At the resume the reference is loaded from elsewhere; the policy is its own."""

    def generate(self, step: int) -> Batch:
        if step == self.resumed_at:
            away = np.random.default_rng(0).normal(0, 0.8, self.reference.shape)
            self.reference = self.reference + away
        return super().generate(step)


class ReferenceFromPolicy(Saving):
    """At the resume the reference is loaded from the checkpoint, as the policy is."""

    def generate(self, step: int) -> Batch:
        if step == self.resumed_at:
            self.reference = self.table.copy()
        return super().generate(step)


class PolicyLeaps(Saving):
    """At the resume the policy is loaded from elsewhere: KL leaps with entropy and reward."""

    def generate(self, step: int) -> Batch:
        if step == self.resumed_at:
            away = np.random.default_rng(0).normal(0, 0.8, self.table.shape)
            self.table = self.table + away
            self.engine = self.table.copy()
        return super().generate(step)


class PlainGradient(Trainer):
    """Gradient descent without momentum; its steps go with the size of the gradient."""

    def config(self) -> dict[str, object]:
        return {**super().config(), "optim": "sgd"}

    def update(self, grad: Array) -> Array:
        return -self.rate() * grad


class WithValues(Trainer):
    """A value for each task is learnt and logged beside; advantages stay those of the groups."""

    sign = 1.0
    """Of the step against the error of the values."""

    def __init__(self, **settings: Any) -> None:
        """Settings by name."""
        super().__init__(**settings)
        self.values = np.full(16, 0.5)
        self.figures: dict[str, float] = {}

    def prepared(self, batch: Batch) -> Batch:
        batch = super().prepared(batch)
        tasks = np.array([10 if digit is None else digit for digit in batch.digit])
        predicted, returns = self.values[tasks].copy(), batch.total
        gap = returns - predicted
        self.figures = {
            "value_loss": float(np.mean(gap**2)),
            "value_mean": float(predicted.mean()),
            "return_mean": float(returns.mean()),
            "return_max": float(returns.max()),
            "return_min": float(returns.min()),
            "value_explained_variance": float(1 - gap.var() / (returns.var() + 1e-5)),
        }
        for task in np.unique(tasks):
            self.values[task] += self.sign * 0.05 * gap[tasks == task].mean()
        return batch

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, **self.figures}


class ValuesDriven(WithValues):
    """The step on the values has the wrong sign: they are driven away from the returns."""

    sign = -1.0


def _cut(values: Array) -> Any:
    """Numbers of 32 bits that hold what bfloat16 does."""
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


CASES = [
    Case("o1", Saving, "healthy", twin_of="opt.state_mismatch"),
    Case("o2", OptimizerLost, "incident", "opt.state_mismatch", (31, 31)),
    Case("o3", BothLost, "incident", "opt.state_mismatch", (31, 31)),
    Case("o4", OptimizerOfLaterStep, "incident", "opt.state_mismatch", (31, 31)),
    Case("o5", ScheduleLost, "incident", "opt.lr_jump", (31, 32)),
    Case("o6", SavedLate, "healthy", twin_of="opt.state_mismatch"),
    Case("o7", SecondMomentsLost, "incident", "opt.state_mismatch", (31, 40)),
    Case("o8", Coarse, "incident", "opt.state_mismatch"),
    Case("o9", CoarseUnused, "healthy", twin_of="opt.state_mismatch"),
    Case("o10", Blank, "incident", "opt.state_mismatch"),
    Case(
        "o11",
        lambda: SecondMomentsSmaller(rate=0.004),
        "incident",
        "opt.state_mismatch",
        (41, 41),
        {"optimizer.weight_moves": "fail"},
    ),
    Case("o12", lambda: PlainGradient(rate=4.0, clip_norm=0.02), "incident", "opt.grad_clip_fuse"),
    Case("o13", lambda: Trainer(clip_norm=0.02), "healthy", twin_of="opt.grad_clip_fuse"),
    Case("o14", ValuesDriven, "incident", "opt.critic"),
    Case("o15", WithValues, "healthy", twin_of="opt.critic"),
    Case("o17", lambda: RaisedRate(rate=0.01), "incident", "opt.lr_jump", (45, 45)),
    Case("o18", SecondMomentsReset, "incident", "opt.state_mismatch", (41, 41)),
    Case("o50", lambda: OtherReference(rate=0.06), "incident", "opt.reference_model", (31, 31)),
    Case(
        "o51", lambda: ReferenceFromPolicy(rate=0.06), "incident", "opt.reference_model", (31, 31)
    ),
    Case(
        "o52",
        lambda: PolicyLeaps(rate=0.06),
        "incident",
        "infra.resume",
        (31, 31),
        twin_of="opt.state_mismatch",
    ),
    Case("o16", ScheduleKept, "healthy", twin_of="opt.lr_jump"),
]
