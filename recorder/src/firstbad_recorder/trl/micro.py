"""One micro-batch: what its loss was computed from, and what flowed back through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.trl.rows import Generation

_ALIKE = 1e-4
"""Difference of two relative spreads from which the smaller one counts."""
_FEWEST = 1e-6
"""Absolute slope of a token's loss from which its weight is told by its gradient."""


@dataclass
class Pass:
    """One differentiated forward pass over R rows, T tokens each of which W are scored."""

    ids: Any
    attended: Any
    width: int
    logp: Any
    """(R, W)"""
    entropy: Any
    again: Callable[..., Any]
    """The same pass on other rows: `again(ids, attended, width)`, as TRL's method takes them."""
    gradient: Any = None
    """(R, W) of the loss with respect to `logp`, as it arrived in the backward pass."""

    def take(self, gradient: Any) -> None:
        """Keep the gradient, as a hook of the backward pass."""
        self.gradient = gradient.detach() if self.gradient is None else self.gradient + gradient


@dataclass
class Micro:
    """One micro-batch of this process."""

    inputs: dict[str, Any]
    generation: Generation
    rows: list[int]
    """Numbers of its rows in the generation batch."""
    update: int
    number: int
    passed: Pass | None = None
    loss: Any = None
    factor: Any = None
    """What the loss was multiplied with before its backward pass began."""
    squares: list[Any] | None = None
    """Squared norms of its own gradient, by parameter; None where nothing listened."""
    checked: dict[str, Any] = field(default_factory=dict)
    """Log-probs of further passes, (R, W), NaN where not made."""

    def grad_norm(self) -> float | None:
        """Norm of its own gradient, before it is added to that of others; None where not heard."""
        import torch

        if self.squares is None or self.passed is None or self.passed.gradient is None:
            return None
        return float(torch.stack(self.squares).sum().sqrt()) if self.squares else 0.0

    def take_factor(self, gradient: Any) -> None:
        """Keep what the loss was multiplied with, as a hook of the backward pass."""
        self.factor = gradient.detach()

    @property
    def lines(self) -> list[dict[str, object]]:
        """Its lines of rollouts.jsonl."""
        return [self.generation.rows[i] for i in self.rows]

    @property
    def mask(self) -> Any:
        """(R, C) tokens that the trainer says it trains."""
        tools = self.inputs.get("tool_mask")
        made = self.inputs["completion_mask"]
        return made if tools is None else made * tools

    def wide(self, values: Any, fill: float = 0) -> Any:
        """(R, W) an array over completion tokens, in the width of the pass."""
        assert self.passed is not None
        width, have = self.passed.width, values.shape[1]
        if have == width:
            return values
        if have > width:
            return values[:, have - width :]
        return values.new_full((values.shape[0], width), fill).index_copy(
            1, _places(values, width - have, width), values
        )

    @property
    def advantage(self) -> Any:
        """(R, 1), or (R, W) where tokens have their own."""
        found = self.inputs["advantages"].float()
        return found.unsqueeze(1) if found.dim() == 1 else self.wide(found)

    @property
    def old(self) -> Any:
        """(R, W) log-probs that ratios are taken against."""
        assert self.passed is not None
        known = self.inputs.get("old_per_token_logps")
        return self.passed.logp if known is None else self.wide(known, float("nan"))


def _places(like: Any, start: int, stop: int) -> Any:
    import torch

    return torch.arange(start, stop, device=like.device)


def trained(micro: Micro, epsilon_low: float, epsilon_high: float) -> Any:
    """(R, W) bool: tokens that were trained, by the gradient where it tells, else as stated.

    A token has a gradient where its row has an advantage, unless its ratio is clipped; in a row
    without one nothing tells.
    """
    import torch

    passed = micro.passed
    assert passed is not None
    stated = micro.wide(micro.mask).bool()
    if passed.gradient is None:
        return stated
    flows = passed.gradient != 0
    moved = flows.any(dim=1, keepdim=True)
    ratio = torch.exp(passed.logp.float() - micro.old.float())
    clipped = (ratio < 1 - epsilon_low) | (ratio > 1 + epsilon_high)
    weighted = micro.inputs.get("importance_sampling_ratio")
    if weighted is not None:
        clipped = clipped | (micro.wide(weighted.expand(stated.shape[0], -1)) == 0)
    told = torch.where(clipped, stated | flows, flows)
    return torch.where(moved, told, stated)


def cut_by_advantage(micro: Micro, ratio: Any, epsilon_low: float, epsilon_high: float) -> Any:
    """(R, W) bool: ratios that are clipped in the direction of the advantage."""
    up, down = micro.advantage > 0, micro.advantage < 0
    return ((ratio > 1 + epsilon_high) & up) | ((ratio < 1 - epsilon_low) & down)


def slope(micro: Micro, epsilon_low: float, epsilon_high: float, beta: float) -> Any:
    """(R, W) derivative of a token's own clipped loss by its log-prob; NaN where it isn't plain.

    -A ratio, 0 where the ratio is clipped in the direction of the advantage, and
    beta (1 - exp(logp_ref - logp)) for the k3 estimator.
    """
    import torch

    passed = micro.passed
    assert passed is not None
    new = passed.logp.float()
    ratio = torch.exp(new - micro.old.float())
    cut = cut_by_advantage(micro, ratio, epsilon_low, epsilon_high)
    found = torch.where(cut, torch.zeros_like(ratio), -micro.advantage * ratio)
    engine = micro.inputs.get("importance_sampling_ratio")
    if engine is not None:
        found = found * micro.wide(engine.float().expand(new.shape[0], -1), 1.0)
    reference = micro.inputs.get("ref_per_token_logps")
    if beta and reference is not None:
        away = micro.wide(reference.float(), float("nan")) - new
        found = found + beta * (1 - torch.exp(away))
    return found


def denominator(micro: Micro, mask: Any, slopes: Any, by_rows: bool) -> tuple[float | None, str]:
    """What the micro-batch's loss is divided by, measured: by its gradient over its slope.

    Of the two ways, a weight of tokens or one of rows, each over its own tokens, the steadier one
    is taken; `by_rows`: the one that is stated, where rows of equal length leave both open. None
    where no token tells.
    """
    import torch

    passed = micro.passed
    assert passed is not None
    if passed.gradient is None:
        return None, ""
    use = mask & (slopes.abs() > _FEWEST) & torch.isfinite(slopes) & (passed.gradient != 0)
    if not bool(use.any()):
        return None, ""
    counts = mask.sum(dim=1, keepdim=True).clamp(min=1).expand_as(mask)[use].double()
    by_token = (slopes[use] / passed.gradient.float()[use]).double()
    by_row = by_token / counts
    spread = [float(_spread(values)) for values in (by_token, by_row)]
    if abs(spread[0] - spread[1]) < _ALIKE:
        kind = "rows" if by_rows else "tokens"
    else:
        kind = "tokens" if spread[0] < spread[1] else "rows"
    chosen = by_token if kind == "tokens" else by_row
    return float(chosen.median()), kind


def _spread(values: Any) -> Any:
    middle = values.median()
    return (values - middle).abs().median() / middle.abs().clamp(min=1e-30)
