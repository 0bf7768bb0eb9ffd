"""What a loss of policy optimisation is computed from, and hand-made rows of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class LossInput:
    """Input of one loss; R rows of T places, log-probs in nats."""

    logp_new: Tensor
    """(R, T), requires_grad: of the weights that are trained."""
    logp_old: Tensor
    """(R, T), of the weights before the update."""
    advantage: Tensor
    """(R,)"""
    loss_mask: Tensor
    """(R, T), 1 where a token is trained; same dtype as the log-probs."""
    logp_ref: Tensor | None = None
    """(R, T), of the reference."""
    logp_engine: Tensor | None = None
    """(R, T), as the rollout engine gave it."""


LossFunction = Callable[[LossInput], "Tensor"]
"""Gives the scalar that `backward()` is called on."""


@dataclass(frozen=True)
class Row:
    """One hand-made row; a difference is one number, or one for each of its trained tokens."""

    n_tokens: int = 2
    """Trained ones, from the first place on."""
    advantage: float = 1.0
    log_ratio: float | Sequence[float] = 0.0
    """logp_new - logp_old"""
    ref_above: float = 0.0
    """logp_ref - logp_new"""
    engine_below: float | Sequence[float] = 0.0
    """logp_old - logp_engine"""
    level: float = 0.0
    """The larger of logp_new and logp_old: at 0 their difference is exact in any dtype."""


class Reaction(NamedTuple):
    """What a loss answers."""

    value: float
    gradient: list[list[float]]
    """(R, T) with respect to logp_new."""


@dataclass
class Bench:
    """Feeds hand-made rows to one loss function."""

    loss_function: LossFunction
    dtype: Any = None
    """Of the log-probs, as training has it; float32 unless given."""
    device: Any = "cpu"
    n_calls: int = field(default=0, init=False)

    @property
    def eps(self) -> float:
        """Relative distance of neighbouring numbers in the dtype."""
        import torch

        return float(torch.finfo(self.dtype or torch.float32).eps)

    def __call__(
        self, rows: Sequence[Row], width: int = 0, masked: float | None = None
    ) -> Reaction:
        """Value and gradient of the loss on these rows.

        Args:
            rows: The rows.
            width: Places of each row, T; that of the longest one unless it is more.
            masked: What stands in all log-probs at places that are not trained; `level` unless set.
        """
        import torch

        made = self.input(rows, width, masked)
        self.n_calls += 1
        loss = self.loss_function(made)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"the loss function gave {type(loss).__name__}, not a tensor")
        if loss.numel() != 1:
            raise TypeError(
                f"the loss function gave a tensor of shape {tuple(loss.shape)}, not a scalar"
            )
        gradient = None
        if loss.requires_grad:
            (gradient,) = torch.autograd.grad(loss.sum(), made.logp_new, allow_unused=True)
        if gradient is None:  # nothing of it depends on the log-probs
            gradient = torch.zeros_like(made.logp_new)
        return Reaction(float(loss.detach().sum()), gradient.double().tolist())

    def input(self, rows: Sequence[Row], width: int = 0, masked: float | None = None) -> LossInput:
        """The same rows as tensors."""
        import torch

        width = max([width, *(r.n_tokens for r in rows)])

        def tensor(values: Sequence[object]) -> Tensor:
            return torch.tensor(values, dtype=self.dtype or torch.float32, device=self.device)

        def places(row: Row, values: Sequence[float], rest: float) -> list[float]:
            return [*values, *[rest] * (width - row.n_tokens)]

        new, old, ref, engine, mask = [], [], [], [], []
        for row in rows:
            rest = row.level if masked is None else masked
            away, below = _each(row.log_ratio, row), _each(row.engine_below, row)
            own_new = [row.level + min(x, 0.0) for x in away]
            own_old = [row.level + min(-x, 0.0) for x in away]
            new.append(places(row, own_new, rest))
            old.append(places(row, own_old, rest))
            ref.append(places(row, [x + row.ref_above for x in own_new], rest))
            engine.append(places(row, [x - e for x, e in zip(own_old, below)], rest))
            mask.append(places(row, [1.0] * row.n_tokens, 0.0))
        return LossInput(
            logp_new=tensor(new).requires_grad_(),
            logp_old=tensor(old),
            advantage=tensor([row.advantage for row in rows]),
            loss_mask=tensor(mask),
            logp_ref=tensor(ref),
            logp_engine=tensor(engine),
        )


def _each(value: float | Sequence[float], row: Row) -> list[float]:
    return [float(value)] * row.n_tokens if isinstance(value, (int, float)) else list(value)


def near(a: float, b: float, share: float = 0.02) -> bool:
    """Whether two numbers are equal up to a share of the larger one; NaN is near nothing."""
    return a == b or abs(a - b) <= share * max(abs(a), abs(b))


def finite(reaction: Reaction) -> bool:
    """Whether value and gradient are finite."""
    return math.isfinite(reaction.value) and all(
        math.isfinite(g) for row in reaction.gradient for g in row
    )
