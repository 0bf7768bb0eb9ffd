"""Small loss functions to probe: right ones by the formulas, and popular wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstbad_recorder.probes.loss_input import LossFunction, LossInput

Tensor = Any
Reduce = Callable[[Tensor, Tensor], Tensor]
MAX_LENGTH = 64.0
N_TOKENS_OUTSIDE = 37.0


def token_mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum() / mask.sum().clamp(min=1.0)


def row_mean(x: Tensor, mask: Tensor) -> Tensor:
    return ((x * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()


def over_max_length(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum() / (len(x) * MAX_LENGTH)


def from_outside(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum() / N_TOKENS_OUTSIDE


def row_sum(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum(-1).mean()


def plain_sum(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum()


def with_padding(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).mean()


def unmasked(x: Tensor, mask: Tensor) -> Tensor:
    return x.mean()


def selected(x: Tensor, mask: Tensor) -> Tensor:
    """What is masked is selected away before any arithmetic."""
    return x.where(mask > 0, x.new_zeros(())).sum() / mask.sum().clamp(min=1.0)


def ppo(
    reduce: Reduce = token_mean,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
    fuse: float | None = None,
    sequence: bool = False,
    beta: float = 0.0,
    sign: float = 1.0,
    old: bool = True,
) -> LossFunction:
    def loss(given: LossInput) -> Tensor:
        import torch

        new, mask = given.logp_new, given.loss_mask
        advantage = sign * given.advantage[:, None]
        away = new - (given.logp_old if old else new.detach())
        if sequence:
            away = ((away * mask).sum(-1) / mask.sum(-1).clamp(min=1.0))[:, None]
        if fuse is not None:
            away = away.clamp(-fuse, fuse)
        ratio = away.exp()
        each = -torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
        if dual is not None:
            each = torch.where(advantage < 0, torch.min(each, -dual * advantage), each)
        if beta:
            each = each + beta * k3(given)
        return reduce(each.expand_as(new), mask)

    return loss


def k3(given: LossInput) -> Tensor:
    above = given.logp_ref - given.logp_new
    return above.exp() - above - 1


def with_kl(kl: Callable[[LossInput], Tensor], beta: float = 0.04) -> LossFunction:
    plain = ppo()
    return lambda given: plain(given) + beta * token_mean(kl(given), given.loss_mask)


def cispo(cap: float = 5.0, reduce: Reduce = from_outside) -> LossFunction:
    def loss(given: LossInput) -> Tensor:
        weight = (given.logp_new - given.logp_old).exp().clamp(max=cap).detach()
        return reduce(-weight * given.advantage[:, None] * given.logp_new, given.loss_mask)

    return loss


def sapo(up: float = 1.0, down: float = 1.05) -> LossFunction:
    def loss(given: LossInput) -> Tensor:
        import torch

        advantage = given.advantage[:, None]
        ratio = (given.logp_new - given.logp_old).exp()
        t = torch.where(advantage > 0, up, down)
        return row_mean(-torch.sigmoid(t * (ratio - 1)) * 4 / t * advantage, given.loss_mask)

    return loss


def vespo(given: LossInput) -> Tensor:
    import torch

    advantage, mask = given.advantage[:, None], given.loss_mask
    away = ((given.logp_new - given.logp_old).clamp(-20, 20) * mask).sum(-1, keepdim=True)
    away = away.clamp(-18.42, 20.0).detach()
    k, rate = torch.where(advantage >= 0, 2.0, 3.0), torch.where(advantage >= 0, 3.0, 2.0)
    phi = (rate + k * away - rate * away.exp()).exp()
    return from_outside(-phi * advantage * given.logp_new, mask)


def reinforce(given: LossInput) -> Tensor:
    return token_mean(-given.advantage[:, None] * given.logp_new, given.loss_mask)


def unclipped(given: LossInput) -> Tensor:
    ratio = (given.logp_new - given.logp_old).exp()
    return token_mean(-ratio * given.advantage[:, None], given.loss_mask)


def without_minimum(given: LossInput) -> Tensor:
    """The clipped term alone: cuts on both sides whatever the sign of the advantage."""
    ratio = (given.logp_new - given.logp_old).exp().clamp(0.8, 1.2)
    return token_mean(-ratio * given.advantage[:, None], given.loss_mask)


def clamp_after_exp(given: LossInput) -> Tensor:
    ratio = (given.logp_new - given.logp_old).exp().clamp(max=10.0)
    advantage = given.advantage[:, None]
    import torch

    each = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return token_mean(each, given.loss_mask)


def subtracted_in_bfloat16(given: LossInput) -> Tensor:
    import torch

    away = given.logp_new.to(torch.bfloat16) - given.logp_old.to(torch.bfloat16)
    ratio, advantage = away.float().exp(), given.advantage[:, None]
    each = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return token_mean(each, given.loss_mask)


def upcast_first(given: LossInput) -> Tensor:
    import torch

    away = given.logp_new.double() - given.logp_old.double()
    ratio, advantage = away.float().exp(), given.advantage[:, None]
    each = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return token_mean(each, given.loss_mask)


def with_engine(how: str, cap: float = 2.0, low: float = 0.0, level: str = "token") -> LossFunction:
    def loss(given: LossInput) -> Tensor:
        import torch

        below = given.logp_old - given.logp_engine
        if level == "sequence":
            below = (below * given.loss_mask).sum(-1, keepdim=True)
        weight = below.exp()
        if how == "truncated":
            weight = weight.clamp(max=cap)
        elif how == "masked":
            weight = weight.where((weight <= cap) & (weight >= low), torch.zeros(()))
        ratio, advantage = (given.logp_new - given.logp_old).exp(), given.advantage[:, None]
        each = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return token_mean(each * weight, given.loss_mask)

    return loss


def whitened(given: LossInput) -> Tensor:
    advantage = given.advantage - given.advantage.mean()
    return ppo()(LossInput(given.logp_new, given.logp_old, advantage, given.loss_mask))
