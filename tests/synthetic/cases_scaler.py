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
        state = {"scale": self.scale, "growth_factor": 2.0, "backoff_factor": 0.5,
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
]  # fmt: skip
