"""Can a few fixed answers be fitted at all?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from firstbad_recorder.probes.untouched import untouched, zero_grad

STEP = 0.01
"""First update of a tensor over the root mean square of its values."""
SLOW = 0.005
"""Share of the first likelihood that an update takes off at least, else the next one is larger."""


def fit(
    model: Any, nll: Callable[[], Any], n_updates: int = 20, enough: float = 0.05
) -> dict[str, Any]:
    """The probe `fit` of FORMAT.md: plain likelihood of 4 to 8 completions, before and after.

    A learning rate fits one model and not another, so each tensor goes down its gradient by a
    hundredth of its own size, by twice as much after an update that hardly helped (a fresh adapter,
    whose factor is 0), by half after one that did harm. That needs no optimizer state; the weights
    are put back.

    Args:
        model: Whose trainable parameters are updated.
        nll: Mean negative log-likelihood of the same few completions, in nats per trained token,
            through the training's own forward pass and mask.
        n_updates: Most updates; five at least, for a fall to show.
        enough: Share of the first likelihood after whose loss no more are made.

    Returns:
        `nll_first`, `nll_last`, `n_updates` that were made, and `n_trained` tensors that got a
        gradient.

    Raises:
        ValueError: the model has no trainable parameter.
    """
    import torch

    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("no parameter of the model is trainable")
    with untouched(model):
        steps = [STEP * _size(p) for p in trained]
        losses: list[float] = []
        reached, pace = 0, 1.0
        for _ in range(n_updates):
            zero_grad(model)
            loss = nll()
            losses.append(float(loss.detach()))
            if losses[-1] <= (1 - enough) * losses[0]:
                break
            pace *= _change_of_pace(losses)
            if loss.requires_grad:
                loss.backward()
            moved = [_step(p, pace * step) for p, step in zip(trained, steps)]
            reached = max(reached, sum(moved))
        else:
            with torch.no_grad():
                losses.append(float(nll()))
    return {
        "nll_first": losses[0],
        "nll_last": losses[-1],
        "n_updates": len(losses) - 1,
        "n_trained": reached,
    }


def _change_of_pace(losses: list[float]) -> float:
    if len(losses) < 2:
        return 1.0
    fall = losses[-2] - losses[-1]
    if fall < 0:
        return 0.5
    return 2.0 if fall < SLOW * losses[0] else 1.0


def _step(parameter: Any, step: float) -> bool:
    """Move a tensor by so much (root mean square); False where it has no gradient."""
    import torch

    if parameter.grad is None:
        return False
    size = float(parameter.grad.float().pow(2).mean().sqrt())
    if not size or not math.isfinite(size):
        return False
    with torch.no_grad():
        parameter.add_(parameter.grad, alpha=-step / size)
    return True


def _size(tensor: Any) -> float:
    """Root mean square; of a tensor that starts at 0 (a LoRA factor, a bias) a usual one."""
    return float(tensor.detach().float().pow(2).mean().sqrt()) or 0.02
