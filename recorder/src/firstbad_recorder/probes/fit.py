"""Can a few fixed answers be fitted at all?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from firstbad_recorder.probes.untouched import untouched, zero_grad

STEP = 0.01
"""Update of a tensor over the root mean square of its values."""


def fit(model: Any, nll: Callable[[], Any], n_updates: int = 20) -> dict[str, Any]:
    """The probe `fit` of FORMAT.md: plain likelihood of 4 to 8 completions, before and after.

    A learning rate fits one model and not another, so each tensor goes down its gradient by a
    hundredth of its own size in an update. That needs no optimizer state; the weights are put back.

    Args:
        model: Whose trainable parameters are updated.
        nll: Mean negative log-likelihood of the same few completions, in nats per trained token,
            through the training's own forward pass and mask.
        n_updates: Updates; five at least, for a fall to show.

    Returns:
        `nll_first`, `nll_last`, `n_updates`, and `n_trained` tensors that got a gradient.

    Raises:
        ValueError: the model has no trainable parameter.
    """
    import torch

    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("no parameter of the model is trainable")
    with untouched(model):
        steps = [STEP * _size(p) for p in trained]
        losses, reached = [], 0
        for _ in range(n_updates):
            zero_grad(model)
            loss = nll()
            losses.append(float(loss.detach()))
            if loss.requires_grad:
                loss.backward()
            moved = [_step(p, step) for p, step in zip(trained, steps)]
            reached = max(reached, sum(moved))
        with torch.no_grad():
            losses.append(float(nll()))
    return {
        "nll_first": losses[0],
        "nll_last": losses[-1],
        "n_updates": n_updates,
        "n_trained": reached,
    }


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
