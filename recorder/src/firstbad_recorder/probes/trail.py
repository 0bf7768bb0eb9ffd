"""Which operation and tensor left the finite numbers first: a plain pass, and hooks if it did."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from firstbad_recorder.probes.origin import Watch, is_finite, measured
from firstbad_recorder.probes.untouched import rng_states, set_rng_states, zero_grad


def replay(
    model: Any, loss: Callable[[], Any], loss_mask: Any = None, *, hooks: bool | None = None
) -> dict[str, Any]:
    """Forward and backward once, and once more with every operation watched if that is not finite.

    The random state of the first pass is used for the second. Gradients of the model are put back.

    Args:
        model: Whose parameters get gradients, and whose modules give operations their path.
        loss: Runs the forward pass and gives the scalar to start backward from.
        loss_mask: (R, T) of the batch; values at its zeros are counted as masked in tensors of
            shape (R, T) or (R, T, ...).
        hooks: Watch always (True) or never (False), not only when the plain pass is not finite.

    Returns:
        `finite` (of the plain pass), `loss`, `grad_norm`, `trail` (the list of `numerics.json`);
        from the watched pass `first` (`Origin.facts` of the operation; None where this pass is
        finite: it does not repeat itself) and `spoiled` (`loss` or `gradient`: what it reaches).
    """
    gradients = [(p, p.grad) for p in model.parameters()]
    seeds = rng_states()
    try:
        zero_grad(model)
        value = loss()
        value.backward()
        found = _plain(model, value)
        if hooks or (hooks is None and not found["finite"]):
            set_rng_states(seeds)
            zero_grad(model)
            found |= _watched(model, loss, loss_mask)
        else:
            found["trail"] = _short(model, value)
        return found
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _plain(model: Any, loss: Any) -> dict[str, Any]:
    """One number for all gradients, so that a GPU is waited for once."""
    import torch

    own = [p.grad for p in model.parameters() if p.grad is not None]
    norms = [n.float() for n in torch._foreach_norm(own)] if own else []
    device = loss.device
    norm = (
        torch.stack([n.to(device) for n in norms]).norm()
        if norms
        else torch.zeros((), device=device)
    )
    size, value = (float(v) for v in torch.stack([norm, loss.detach().float()]).tolist())
    finite = math.isfinite(value) and (math.isfinite(size) or _all_finite(own))
    return {"finite": finite, "loss": value, "grad_norm": size}


def _all_finite(tensors: list[Any]) -> bool:
    """Asked only where the norm overflowed, which finite gradients can do."""
    return all(map(is_finite, tensors))


def _watched(model: Any, loss: Callable[[], Any], loss_mask: Any) -> dict[str, Any]:
    watch = Watch(model, loss_mask)
    with watch:
        value = loss()
        watch.backward_begins()
        value.backward()
    ends = _ends(model, value)
    if is_finite(value):
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        spoiled, tensors = "gradient", [g for g in gradients if not is_finite(g)]
    else:
        spoiled, tensors = "loss", [value]
    origins = [origin for t in tensors if (origin := watch.origin_of(t)) is not None]
    first = min(origins, key=lambda o: o.number, default=None)
    if first is None:
        return {"first": None, "spoiled": None, "trail": ends}
    return {"first": first.facts(), "spoiled": spoiled, "trail": [*first.trail(), *ends]}


def _short(model: Any, loss: Any) -> list[dict[str, Any]]:
    """The trail of a finite pass: no gradient is read again."""
    n = sum(p.grad.numel() for p in model.parameters() if p.grad is not None)
    own = {"name": "gradients", "place": "grad", "n": n, "n_nonfinite": 0, "n_nonfinite_masked": 0}
    return [measured("loss", "loss", loss), own]


def _ends(model: Any, loss: Any) -> list[dict[str, Any]]:
    """Loss and gradients, as they are at the end of every pass."""
    trail = [measured("loss", "loss", loss)]
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            trail.append(measured(name, "grad", parameter.grad))
    return trail
