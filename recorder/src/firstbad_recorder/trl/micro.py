"""One micro-batch: what its loss was computed from, and what flowed back through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.trl.gradients import Heard
from firstbad_recorder.trl.rows import Generation

_CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo")
_ALIKE = 1e-4
"""Difference of two relative spreads from which the smaller one counts."""
_AT_ONE = 1e-4
"""Distance of ratios from 1 up to which all losses have the slope of the plain one."""
DUE = 1e-3
"""Absolute slope of a token's loss from which a gradient of exactly 0 is none."""
_FEWEST = 1e-6
"""Absolute slope of a token's loss from which its weight is told by its gradient."""


@dataclass(frozen=True)
class Settings:
    """Of the trainer's loss, as they are in force."""

    bounds: tuple[float, float] | None
    """Ratios below and above which a token is clipped; None where the loss clips none."""
    caps: bool
    """A ratio above the bounds weighs as much as the upper one, whatever the advantage (CISPO)."""
    beta: float
    by_rows: bool
    """The stated loss is a mean over rows of the mean over each one's tokens."""
    is_plain: bool
    """A clipped ratio of tokens; others are only known at a ratio of 1."""
    by_sequence: bool
    """One ratio a row, of the mean over its tokens."""
    corrects_kl: bool
    """The KL term is multiplied with the ratio."""
    leaves_out: bool
    """Tokens or rows are left out of the loss by their entropy or their staleness."""
    weighs_engine: bool = True
    """The weight for the engine's log-probs multiplies the loss; else it enters in another way."""


def settings_of_loss(trainer: Any) -> Settings:
    """Read off a trainer."""
    kind = getattr(trainer, "loss_type", "grpo")
    level = getattr(trainer, "importance_sampling_level", "token")
    caps = kind == "cispo"
    one_sided = caps or getattr(trainer.args, "delta", None) is None
    stale = getattr(trainer, "off_policy_mask_threshold", None)
    return Settings(
        bounds=_bounds(trainer, kind),
        caps=caps,
        beta=float(getattr(trainer, "beta", 0.0)),
        by_rows=kind in ("grpo", "sapo"),
        is_plain=(caps or kind in _CLIPPED) and level == "token" and one_sided,
        by_sequence=level == "sequence",
        corrects_kl=bool(getattr(trainer.args, "use_bias_correction_kl", False)),
        leaves_out=float(getattr(trainer, "top_entropy_quantile", 1.0)) < 1.0 or stale is not None,
        weighs_engine=kind != "vespo",
    )


def _bounds(trainer: Any, kind: str) -> tuple[float, float] | None:
    if kind == "cispo":  # the upper one is a ratio itself, and there is no lower one
        return 0.0, float(trainer.epsilon_high)
    if kind not in (*_CLIPPED, "luspo"):
        return None
    return 1 - float(trainer.epsilon_low), 1 + float(trainer.epsilon_high)


@dataclass
class Pass:
    """One differentiated forward pass over R rows, T tokens each of which W are scored."""

    ids: Any
    attended: Any
    width: int
    logp: Any
    """(R, W)"""
    entropy: Any
    again: Callable[[], Any]
    """The same pass once more."""
    alone: Callable[..., Any] | None = None
    """The same on other rows: `alone(ids, attended, width)`, as TRL's method takes them; None where
    a row has more than its tokens, such as images."""
    gradient: Any = None
    """(R, W) of the loss with respect to `logp`, as it arrived in the backward pass."""
    scale: float = 1.0
    """What the loss is multiplied with against vanishing gradients; divided by here."""

    def take(self, gradient: Any) -> None:
        """Keep the gradient, as a hook of the backward pass."""
        own = unscaled(gradient, self.scale)
        self.gradient = own if self.gradient is None else self.gradient + own


def unscaled(gradient: Any, scale: float) -> Any:
    """What it is without the scale; in half precision some of it would vanish."""
    return gradient.detach() if scale == 1.0 else gradient.detach().float() / scale


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
    heard: Heard | None = None
    """Its own gradient, by parameter; None where nothing listened."""
    scale: float = 1.0
    """What its loss is multiplied with against vanishing gradients."""
    checked: dict[str, Any] = field(default_factory=dict)
    """Log-probs of further passes, (R, W), NaN where not made."""

    def grad_norm(self) -> float | None:
        """Norm of its own gradient, before it is added to that of others; None where not heard."""
        norm = None if self.heard is None else self.heard.norm()
        return None if norm is None else norm / self.scale

    def take_factor(self, gradient: Any) -> None:
        """Keep what the loss was multiplied with, as a hook of the backward pass."""
        self.factor = unscaled(gradient, self.scale)

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


def ratios(micro: Micro, mask: Any, settings: Settings) -> tuple[Any, Any]:
    """(R, W) ratio that each token is weighed with, and bool: where each ratio counts once.

    Of rows in which nothing is trained none counts.
    """
    import torch

    assert micro.passed is not None
    away = micro.passed.logp.float() - micro.old.float()
    if not settings.by_sequence:
        return torch.exp(away), mask
    total = torch.where(mask, away, torch.zeros_like(away)).sum(dim=1, keepdim=True)
    mean = total / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.exp(mean).expand_as(away), mask & (mask.cumsum(dim=1) == 1)


def cut_by_advantage(micro: Micro, ratio: Any, bounds: tuple[float, float]) -> Any:
    """(R, W) bool: ratios that are clipped in the direction of the advantage."""
    up, down = micro.advantage > 0, micro.advantage < 0
    return ((ratio > bounds[1]) & up) | ((ratio < bounds[0]) & down)


def _weight(micro: Micro, ratio: Any, settings: Settings) -> Any:
    """(R, W) what the loss makes of the ratio."""
    import torch

    if settings.bounds is None:
        return ratio
    if settings.caps:
        return ratio.clamp(max=settings.bounds[1])
    cut = cut_by_advantage(micro, ratio, settings.bounds)
    return torch.where(cut, torch.zeros_like(ratio), ratio)


def _engine_weight(micro: Micro) -> Any:
    """(R, W), or (R, 1) where a row has one weight; None without an engine."""
    found = micro.inputs.get("importance_sampling_ratio")
    if found is None:
        return None
    found = found.float()
    found = found.unsqueeze(1) if found.dim() == 1 else found
    return found if found.shape[1] == 1 else micro.wide(found, 1.0)


def slope(micro: Micro, settings: Settings) -> Any:
    """(R, W) derivative of a token's own loss by its log-prob; NaN where that is not known.

    -A ratio, 0 where the ratio is clipped in the direction of the advantage, and the derivative of
    beta k3, or of beta ratio k3 where TRL corrects it. Other losses have the same at a ratio of 1.
    """
    import torch

    passed = micro.passed
    assert passed is not None
    new = passed.logp.float()
    ratio = torch.exp(new - micro.old.float())
    found = -micro.advantage * _weight(micro, ratio, settings)
    engine = _engine_weight(micro)
    if engine is not None and settings.weighs_engine:
        found = found * engine
    reference = micro.inputs.get("ref_per_token_logps")
    if settings.beta and reference is not None:
        away = micro.wide(reference.float(), float("nan")) - new
        own = 1 - torch.exp(away)
        if settings.corrects_kl:
            own = ratio * (own + torch.exp(away) - away - 1)
        found = found + settings.beta * own
    if not settings.is_plain:
        away = (ratio - 1).abs()
        if engine is not None and not settings.weighs_engine:
            away = torch.maximum(away, (engine - 1).abs().expand_as(away))
        away = torch.where(micro.wide(micro.mask).bool(), away, torch.zeros_like(away))
        moved = away.amax(dim=1, keepdim=True) > _AT_ONE
        found = torch.where(moved, torch.full_like(found, float("nan")), found)
    return found


def trained(micro: Micro, settings: Settings, slopes: Any) -> Any:
    """(R, W) bool: tokens that were trained, by the gradient where it tells, else as stated.

    A token without a gradient is untrained where its own slope is clearly not 0. Where the trainer
    leaves tokens out by their entropy or their staleness, the statement counts.
    """
    import torch

    passed = micro.passed
    assert passed is not None
    stated = micro.wide(micro.mask).bool()
    if passed.gradient is None or not bool(torch.isfinite(passed.gradient).all()):
        return stated  # NaN spreads over all places, whatever is trained
    flows = passed.gradient != 0
    tells = (slopes.abs() > DUE) & flows.any(dim=1, keepdim=True)
    if settings.leaves_out:
        tells = torch.zeros_like(tells)
    return torch.where(tells, flows, stated | flows)


@dataclass(frozen=True)
class Weighed:
    """A micro-batch, and how its tokens count in its loss."""

    micro: Micro
    passed: Pass
    mask: Any
    """(R, W) bool: tokens that were trained."""
    slopes: Any
    """(R, W), see `slope`."""
    ratio: Any
    once: Any
    """Both (R, W), see `ratios`."""


def weighed(micro: Micro, settings: Settings) -> Weighed:
    """Look at a micro-batch whose gradient has arrived."""
    assert micro.passed is not None
    slopes = slope(micro, settings)
    mask = trained(micro, settings, slopes)
    return Weighed(micro, micro.passed, mask, slopes, *ratios(micro, mask, settings))


def divisors(micro: Micro, mask: Any, slopes: Any, by_rows: bool) -> tuple[Any, str]:
    """What each token's loss is divided by, measured: by its gradient over its slope.

    Of the two ways, a weight of tokens or one of rows, each over its own tokens, the steadier one
    is taken; `by_rows`: the one that is stated, where rows of equal length leave both open. None
    where no token tells.
    """
    import torch

    passed = micro.passed
    assert passed is not None
    if passed.gradient is None:
        return None, ""
    finite = torch.isfinite(slopes) & torch.isfinite(passed.gradient)
    use = mask & (slopes.abs() > _FEWEST) & finite & (passed.gradient != 0)
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
    return by_token if kind == "tokens" else by_row, kind


def denominator(micro: Micro, mask: Any, slopes: Any, by_rows: bool) -> tuple[float | None, str]:
    """What the micro-batch's loss is divided by: the middle of `divisors`."""
    found, kind = divisors(micro, mask, slopes, by_rows)
    return (None if found is None else float(found.median())), kind


def _spread(values: Any) -> Any:
    middle = values.median()
    return (values - middle).abs().median() / middle.abs().clamp(min=1e-30)
