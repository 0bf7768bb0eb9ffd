"""A few tensors of a model: their digests, and how far an update moves them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

MOST_TENSORS = 8
MOST_NUMBERS = 2**16
"""Of one tensor that are looked at, evenly spread."""
_DIGESTED = 4096
_SHARDING = {"FSDPModule", "FullyShardedDataParallel"}


def sampled(named: Mapping[str, Any]) -> dict[str, Any]:
    """Some tensors by name, from the first to the last."""
    names = [name for name, value in named.items() if _size(value) > 0]
    if len(names) <= MOST_TENSORS:
        return {name: named[name] for name in names}
    at = [round(i * (len(names) - 1) / (MOST_TENSORS - 1)) for i in range(MOST_TENSORS)]
    return {names[i]: named[names[i]] for i in at}


def local(tensor: Any) -> Any:
    """What this process has of a tensor, where that is spread over several (a DTensor)."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def sharded(model: Any) -> bool:
    """Whether its parameters are spread over processes, all the time or between passes (FSDP).

    Hooks of such parameters are called for some of them, or with a part of a gradient.
    """
    spread_out = any(hasattr(parameter, "to_local") for parameter in model.parameters())
    kinds = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    return spread_out or bool(kinds & _SHARDING)


def _size(value: Any) -> int:
    return int(local(value).numel()) if hasattr(value, "numel") else 0


def spread(tensor: Any, most: int) -> Any:
    """(up to `most`,) numbers of a tensor, evenly spread, as a copy."""
    flat = local(tensor.detach()).reshape(-1)
    step = max(1, -(-flat.numel() // most))
    return flat[::step].clone()


def digest(tensor: Any, dtype: Any = None) -> str:
    """Of some of its numbers, as they are after a cast to `dtype`."""
    import torch

    values = spread(tensor, _DIGESTED)
    values = values.to(dtype) if dtype is not None else values
    data = values.to(torch.float32).cpu().contiguous().numpy().tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def compared(trainer: Mapping[str, Any], engine: Mapping[str, Any]) -> list[dict[str, object]]:
    """`tensors` of a line of syncs.jsonl: the same tensors on both sides, in the coarser dtype.

    Of a tensor that is spread over processes there is only a part: it is left out where the engine
    has the whole.
    """
    found: list[dict[str, object]] = []
    for name, own in sampled(trainer).items():
        other = engine.get(name)
        if other is None:
            found.append({"name": name, "trainer": digest(own), "engine": None})
            continue
        if hasattr(own, "to_local") and local(own).shape != local(other).shape:
            continue
        coarse = min((own, other), key=lambda tensor: tensor.element_size()).dtype
        found.append(
            {"name": name, "trainer": digest(own, coarse), "engine": digest(other, coarse)}
        )
    return found


class Moves:
    """How one update moves some parameters."""

    def __init__(self, named: Mapping[str, Any], scale: float = 1.0) -> None:
        """Look at them before the update; `scale`: what gradients are still multiplied with."""
        self._scale = scale
        self._named = sampled(named)
        self._before = {name: spread(p, MOST_NUMBERS) for name, p in self._named.items()}
        self._grads = {
            name: None if p.grad is None else spread(p.grad, MOST_NUMBERS)
            for name, p in self._named.items()
        }

    def figures(self) -> list[dict[str, object]]:
        """`parameters` of numerics.json, after the update."""
        import torch

        found: list[dict[str, object]] = []
        for name, p in self._named.items():
            before, grad = self._before[name], self._grads[name]
            after = spread(p, MOST_NUMBERS)
            scale = (p.numel() / max(1, before.numel())) ** 0.5
            with_grad = torch.ones_like(before, dtype=torch.bool) if grad is None else grad != 0
            moved = (after != before)[with_grad]
            norms = torch.stack([
                (torch.zeros_like(before) if grad is None else grad).double().norm(),
                (after.double() - before.double()).norm(),
                before.double().norm(),
                moved.double().sum() / max(1, moved.numel()),
            ]).tolist()  # fmt: skip
            found.append({
                "name": name, "grad_norm": None if grad is None else norms[0] * scale / self._scale,
                "update_norm": norms[1] * scale, "weight_norm": norms[2] * scale,
                "moved_share": norms[3], "dtype": str(p.dtype).rpartition(".")[2],
            })  # fmt: skip
        return found
