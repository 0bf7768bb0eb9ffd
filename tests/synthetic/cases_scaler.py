"""Gradients in float16 with a loss scaler, which halves its scale where they overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array
from synthetic.saving import Saving
from synthetic.torch_files import save_torch


class Scaled(Saving):
    """The loss is scaled before the backward pass; updates that overflow are skipped."""

    resumed_at = None
    backoff = 0.5
    unit = 1.0
    """What gradients inside of the model are larger by than those of the weights."""

    def __init__(self, **settings: Any) -> None:
        """See the class."""
        super().__init__(**settings)
        self.scale, self.sound = 65536.0, 0

    def config(self) -> dict[str, object]:
        """See the class."""
        return {**super().config(), "fp16": True}

    def backward(self, *args: Any, **named: Any) -> Any:
        """Passes through float16, multiplied by the scale."""
        grad, loss, ledger = super().backward(*args, **named)
        with np.errstate(over="ignore"):
            inside = (grad * self.scale * self.unit).astype(np.float16).astype(np.float64)
        return inside / (self.scale * self.unit), loss, ledger

    def update(self, grad: Array) -> Array:
        """Adam, or nothing."""
        if np.isfinite(grad).all():
            self.sound += 1
            return super().update(grad)
        self.scale, self.sound = self.scale / 2, 0
        return np.zeros_like(grad)

    def numerics(self, *args: Any, **named: Any) -> dict[str, object]:
        """Nothing is recorded of it."""
        return {}

    def train(self, *args: Any, **settings: Any) -> None:
        """The arithmetic is meant to overflow."""
        with np.errstate(invalid="ignore"):
            super().train(*args, **settings)

    def save(self, folder: Path) -> None:
        """With the scaler."""
        super().save(folder)
        state = {"scale": self.scale, "growth_factor": 2.0, "backoff_factor": self.backoff,
                 "growth_interval": 2000, "_growth_tracker": self.sound}  # fmt: skip
        save_torch(folder / "scaler.pt", state)


class OverflowsAtAnyScale(Scaled):
    """From the onset on, an activation is so large that its gradient overflows by itself."""

    @property
    def unit(self) -> float:  # type: ignore[override]
        """See the class."""
        return 1e9 if self.after else 1.0

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        """The gradient norm is not logged."""
        return {name: value for name, value in row.items() if name != "grad_norm"}


class NeverFinite(OverflowsAtAnyScale):
    """From the onset on every update is skipped; the scale is in float32, as in torch."""

    def backward(self, *args: Any, **named: Any) -> Any:
        """With an infinite gradient."""
        grad, loss, ledger = super().backward(*args, **named)
        return grad + (np.inf if self.after else 0.0), loss, ledger

    def update(self, grad: Array) -> Array:
        """See the class."""
        change = super().update(grad)
        self.scale = float(np.float32(self.scale))
        return change


class UsedUp(NeverFinite):
    """The scale falls so fast that it rounds to 0."""

    backoff = 2.0**-20

    def update(self, grad: Array) -> Array:
        """See the class."""
        before = self.scale
        change = super().update(grad)
        if not self.sound:
            self.scale = float(np.float32(before * self.backoff))
        return change


class SetToHalf(Scaled):
    """A scale of 0.5 is set once and never changes."""

    def __init__(self, **settings: Any) -> None:
        """See the class."""
        super().__init__(**settings)
        self.scale = 0.5


class BeginsTooLarge(Scaled):
    """Gradients are large: the scale falls a few times until they fit."""

    unit = 1500.0


CHECK = "numerics.loss_scale"
FEW: dict[str, Any] = {"onset": 21}

CASES = [
    Case("n85", lambda: OverflowsAtAnyScale(**FEW), "incident", "num.overflow_activations",
         checks={CHECK: "fail"}),
    Case("n86", lambda: BeginsTooLarge(steps=64), "healthy",
         checks={CHECK: "pass", "optimizer.state": "pass"},
         twin_of="opt.state_mismatch"),
    # All updates since step 45 are skipped, and the scale is not yet below 1.
    Case("n90", lambda: NeverFinite(onset=45), "incident", "num.overflow_activations", (41, 60),
         checks={CHECK: "fail"}),
    # No resume: what neither optimizer nor schedule counted was skipped.
    Case("n91", lambda: UsedUp(onset=21), "incident", "num.overflow_activations", (21, 40),
         checks={CHECK: "fail"}, twin_of="opt.state_mismatch"),
    Case("n92", SetToHalf, "healthy", checks={CHECK: "pass"}, twin_of="num.overflow_activations"),
]  # fmt: skip
