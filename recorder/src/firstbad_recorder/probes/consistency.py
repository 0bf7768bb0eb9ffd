"""One model on the same token rows again and in another layout: what differs by itself?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Forward = Callable[[Any, Any, Any], Any]
"""(token_id, attention_mask, position) of (R, L) to logits of (R, L, V)."""


def consistency(
    model: Any,
    rows: Sequence[Sequence[int]],
    n_prompt: Sequence[int],
    *,
    logp_old: Sequence[Sequence[float]] | None = None,
    logp_engine: Sequence[Sequence[float]] | None = None,
    temperature: float = 1.0,
    pad_id: int = 0,
    left: bool = True,
    forward: Forward | None = None,
    keep_mode: bool = False,
) -> dict[str, Any]:
    """Log-probs of completions in a padded batch (A), again (B), row by row, and as given.

    Row by row means without padding. Weights, rows and their order stay.

    Args:
        model: Called with `input_ids`, `attention_mask` and `position_ids`, or by `forward`.
        rows: Token ids of each row, prompt and completion, without padding.
        n_prompt: Tokens of each row that are prompt.
        logp_old: nats, of each row's completion: what training uses as the old log-prob.
        logp_engine: nats, the same as the rollout engine gave it (C).
        temperature: That logits are divided by.
        pad_id: Stands in padding.
        left: Whether rows are padded at the left.
        forward: Runs the model.
        keep_mode: Leaves dropout and the like as they are; else they are off.

    Returns:
        `recheck` (B against A), `layout` (row by row against A), and where given `old` and `engine`
        (against A), each with `n`, `mean`, `p99`, `p999`, `max` of the absolute difference in nats,
        `mean_signed`, and `worst` (a list of `{"row", "place", "a", "other"}`); `logp`,
        `logp_recheck`, `logp_layout`: the log-probs, a list for each row. All in float64.

    Raises:
        ValueError: a row has no completion, or given log-probs are not as long as it.
    """
    import torch

    for given in (logp_old, logp_engine):
        if given is not None and [len(g) for g in given] != [
            len(r) - n for r, n in zip(rows, n_prompt)
        ]:
            raise ValueError("given log-probs are not as long as the completions")
    if any(not 0 < n < len(r) for r, n in zip(rows, n_prompt)):
        raise ValueError("each row needs a prompt and a completion")
    run = forward or _forward_of(model)
    modes = [(module, module.training) for module in model.modules()]
    if not keep_mode:
        model.eval()
    try:
        with torch.no_grad():
            how = (rows, n_prompt, temperature, pad_id, left)
            first, again = (_log_probs(model, run, *how) for _ in range(2))
            alone = [
                _log_probs(model, run, [row], [n], temperature, pad_id, left)[0]
                for row, n in zip(rows, n_prompt)
            ]
    finally:
        for module, mode in modes:
            module.training = mode
    found = {"recheck": difference(first, again), "layout": difference(first, alone)}
    for name, given in (("old", logp_old), ("engine", logp_engine)):
        if given is not None:
            found[name] = difference(first, [[float(v) for v in row] for row in given])
    return {**found, "logp": first, "logp_recheck": again, "logp_layout": alone}


def difference(
    a: Sequence[Sequence[float]], other: Sequence[Sequence[float]], worst: int = 5
) -> dict[str, Any]:
    """Figures of other - a, row by row, in nats."""
    places = [
        (abs(y - x), y - x, i, t, x, y)
        for i, (own, theirs) in enumerate(zip(a, other))
        for t, (x, y) in enumerate(zip(own, theirs))
    ]
    n_bad = sum(not math.isfinite(p[0]) for p in places)
    sound = sorted((p for p in places if math.isfinite(p[0])), reverse=True)
    n = len(sound)
    figures: dict[str, Any] = {"n": n, "n_nonfinite": n_bad}
    if n:
        figures |= {
            "mean": math.fsum(p[0] for p in sound) / n,
            "mean_signed": math.fsum(p[1] for p in sound) / n,
            "p99": sound[int(0.01 * (n - 1))][0],
            "p999": sound[int(0.001 * (n - 1))][0],
            "max": sound[0][0],
        }
    figures["worst"] = [
        {"row": i, "place": t, "a": x, "other": y} for *_, i, t, x, y in sound[:worst]
    ]
    return figures


def _forward_of(model: Any) -> Forward:
    def run(token_id: Any, attention_mask: Any, position: Any) -> Any:
        found = model(input_ids=token_id, attention_mask=attention_mask, position_ids=position)
        return getattr(found, "logits", found)

    return run


def _log_probs(
    model: Any,
    run: Forward,
    rows: Sequence[Sequence[int]],
    n_prompt: Sequence[int],
    temperature: float,
    pad_id: int,
    left: bool,
) -> list[list[float]]:
    """Of the completion of each row, in one forward pass."""
    import torch

    width = max(map(len, rows))
    device = next(model.parameters()).device
    begins = [width - len(row) if left else 0 for row in rows]
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, (row, begin) in enumerate(zip(rows, begins)):
        ids[i, begin : begin + len(row)] = torch.tensor(row)
        mask[i, begin : begin + len(row)] = 1
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = run(ids.to(device), mask.to(device), position.to(device))
    found = []
    for i, (row, begin, n) in enumerate(zip(rows, begins, n_prompt)):
        own = logits[i, begin + n - 1 : begin + len(row) - 1].double() / temperature
        chosen = own.log_softmax(-1).gather(-1, torch.tensor(row[n:], device=own.device)[:, None])
        found.append([float(v) for v in chosen[:, 0].tolist()])
    return found
