"""The same samples as one batch and as several micro-batches: is it the same gradient?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from firstbad_recorder.probes.untouched import no_dropout, untouched, zero_grad

MOST_FOR_SUBSETS = 8
"""Micro-batches up to which all subsets are tried."""
SAME = 0.05
"""Relative difference of gradients up to which they agree, as the reader of the probe has it."""
SPREADS = 10
"""... or so many of what repeating the same computation differs by."""

Backward = Callable[[Sequence[Any]], object]
"""Runs forward and backward for each of these micro-batches as training does, with its scaling for
so many of them, and leaves the sum in `.grad`. It does not step."""


def accumulation(
    model: Any,
    backward: Backward,
    whole: Any,
    parts: Sequence[Any],
    *,
    n_tokens: Sequence[Sequence[int]] | None = None,
    optimizer: Any = None,
    world_size: int = 1,
    any_rank: Callable[[bool], bool] | None = None,
) -> dict[str, Any]:
    """The probe `accumulation` of FORMAT.md, by two or more runs of the training's own code.

    Dropout layers are off meanwhile: what they drop depends on how the rows are batched.

    Args:
        model: Whose parameters are looked at; it is left as it was, and so is the optimizer.
        backward: See above; called with `[whole]`, with `parts`, and where the two differ with each
            part alone.
        whole: All samples as one batch.
        parts: The same samples as N batches.
        n_tokens: Trained tokens of each row, for each part.
        optimizer: With one, the first step from either gradient is compared.
        world_size: Processes that the gradients are joined over, for the name of a factor.
        any_rank: Whether something holds in any of them, where `backward` waits for the others:
            all make the same calls of it then.

    Returns:
        `cosine`, `norm_ratio` (accumulated over whole), `difference` (norm of their difference over
        that of the whole), `spread` (the same when the whole batch is repeated), `n_microbatches`,
        `world_size`; `equal_lengths` where `n_tokens` is given; `parameter_delta` with an
        optimizer; where the gradients differ `cosine_subset`, `even` (see `named_factor`) and
        `shares` (by how much each part's own gradient enters the accumulated one, over that by
        which it enters the whole one).

    Raises:
        ValueError: no gradient arrives at all, or one is not finite.
    """
    with untouched(model, optimizer), no_dropout(model):
        first = _gradient(model, backward, [whole])
        again = _gradient(model, backward, [whole])
        summed = _gradient(model, backward, parts)
        size = _norm(first)
        usable = bool(size) and math.isfinite(size + _norm(summed))
        found = _compared(first, again, summed, size) if usable else {}
        found |= {"n_microbatches": len(parts), "world_size": world_size}
        if n_tokens is not None:
            found["equal_lengths"] = len({n for part in n_tokens for n in part}) == 1
        closer = usable and differs(found)
        if closer if any_rank is None else any_rank(closer):
            own = [_gradient(model, backward, [part]) for part in parts]
            found |= _by_parts(first, summed, own) if closer else {}
        if not usable:
            raise ValueError("the gradient of the whole batch is 0 or not finite")
        if optimizer is not None:
            found["parameter_delta"] = _parameter_delta(model, optimizer, first, summed)
    return found


def _compared(first: list[Any], again: list[Any], summed: list[Any], size: float) -> dict[str, Any]:
    """The gradient in parts and a repeated one against that of the whole, whose norm is `size`."""
    return {
        "cosine": _cosine(summed, first),
        "norm_ratio": _norm(summed) / size,
        "difference": _norm([a - b for a, b in zip(summed, first)]) / size,
        "spread": _norm([a - b for a, b in zip(first, again)]) / size,
    }


def differs(found: Mapping[str, Any]) -> bool:
    """Whether the two gradients differ by more than rounding, as the reader of the probe judges."""
    return bool(found["difference"] > max(SAME, SPREADS * found["spread"]))


def named_factor(found: Mapping[str, Any]) -> str | None:
    """What a difference looks like; None where the gradients agree."""
    if not differs(found):
        return None
    n, world, ratio = found["n_microbatches"], found["world_size"], found["norm_ratio"]
    if found["cosine"] > 0.999:
        names = {
            "number of micro-batches": n,
            "1 / number of micro-batches": 1 / n,
            "world size": world,
            "1 / world size": 1 / world,
        }
        for name, factor in names.items():
            if factor != 1 and abs(ratio / factor - 1) < 0.01:
                return name
        return f"factor {ratio:.4g}"
    shares = found.get("shares") or []
    if any(abs(s) < 0.01 for s in shares):
        missing = [str(i + 1) for i, s in enumerate(shares) if abs(s) < 0.01]
        return f"micro-batch {', '.join(missing)} of {n} does not arrive"
    if found.get("even"):
        return "mean of the micro-batches' means"
    return "another sum"


def _gradient(model: Any, backward: Backward, batches: Sequence[Any]) -> list[Any]:
    """Gradient of each parameter, zeros where none arrives; taken off the model."""
    import torch

    zero_grad(model)
    backward(batches)
    trained = [p for p in model.parameters() if p.requires_grad]
    found = [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in trained]
    zero_grad(model)
    return found


def _by_parts(first: list[Any], summed: list[Any], own: list[list[Any]]) -> dict[str, Any]:
    """Both gradients as sums of the parts' own ones."""
    import torch

    gram = torch.tensor([[_dot(a, b) for b in own] for a in own], dtype=torch.float64)
    sides = [torch.tensor([_dot(a, g) for a in own], dtype=torch.float64) for g in (first, summed)]
    # Of nearly parallel parts many shares would do; the solver takes the smallest ones.
    whole, made = (
        torch.linalg.lstsq(gram, side[:, None], driver="gelsd").solution[:, 0] for side in sides
    )
    found: dict[str, Any] = {}
    if all(abs(float(w)) > 1e-6 for w in whole):
        found["shares"] = [float(m / w) for m, w in zip(made, whole)]
    even = float((made - made.mean()).abs().max()) <= 0.02 * abs(float(made.mean()))
    found["even"] = even and float((whole - whole.mean()).abs().max()) > 0.02 * abs(
        float(whole.mean())
    )
    n = len(own)
    if n <= MOST_FOR_SUBSETS:
        of_whole = [[float(w) * g for g in part] for w, part in zip(whole, own)]
        found["cosine_subset"] = max(
            _cosine(summed, [sum(tensors) for tensors in zip(*(of_whole[i] for i in chosen))])
            for k in range(1, n + 1)
            for chosen in combinations(range(n), k)
        )
    return found


def _parameter_delta(
    model: Any, optimizer: Any, whole: list[Any], summed: list[Any]
) -> float | None:
    """Relative difference of the first step from either gradient."""
    before = [p.detach().clone() for p in model.parameters()]
    moved = []
    for gradient in (whole, summed):
        with untouched(model, optimizer):
            for parameter, own in zip((p for p in model.parameters() if p.requires_grad), gradient):
                parameter.grad = own.to(parameter.dtype).clone()
            optimizer.step()
            moved.append([p.detach() - b for p, b in zip(model.parameters(), before)])
    size = _norm(moved[0])
    return _norm([a - b for a, b in zip(moved[1], moved[0])]) / size if size else None


def _dot(a: list[Any], b: list[Any]) -> float:
    return sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b))


def _norm(tensors: list[Any]) -> float:
    return math.sqrt(_dot(tensors, tensors))


def _cosine(a: list[Any], b: list[Any]) -> float:
    size = _norm(a) * _norm(b)
    return max(-1.0, min(1.0, _dot(a, b) / size)) if size else 0.0
