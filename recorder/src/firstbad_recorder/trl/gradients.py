"""What is seen of gradients and updates while a training runs, by hooks that `close` removes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.trl import weights


@dataclass
class Heard:
    """Norms of the gradients of one micro-batch, by parameter."""

    norms: list[Any] = field(default_factory=list)
    whole: bool = True
    """Whether nothing that arrived is missing."""

    def add(self, gradient: Any) -> None:
        """One more, as it arrives and before it is added to others."""
        import torch

        try:
            own = weights.local(gradient.detach())
            exact = torch.float64 if own.dtype == torch.float64 else torch.float32
            self.norms.append(torch.linalg.vector_norm(own, dtype=exact))
        except Exception:
            self.whole = False
            raise

    def norm(self) -> float | None:
        """Of all of them together; None where nothing was heard, as hooks may not be called."""
        import torch

        if not self.whole or not self.norms:
            return None
        device = self.norms[0].device
        return float(torch.stack([n.double().to(device) for n in self.norms]).norm())


class Gradients:
    """Hooks of the optimizer, and of parameters in the steps that are looked at more closely."""

    def __init__(self, quietly: Callable[..., Any]) -> None:
        """`quietly`: calls a function; what that raises goes no further."""
        self._quietly = quietly
        self._of_step: list[Any] = []
        self._of_optimizer: list[Any] = []
        self._heard = Heard()
        self._moves: weights.Moves | None = None
        self.rate: float | None = None
        """Learning rate of the update at hand, as the optimizer has it."""
        self.parameters: list[dict[str, object]] = []
        """How far it moved some parameters."""

    def listen(self, model: Any) -> Heard | None:
        """Hear the gradients of a micro-batch until the next one; None where parameters are spread.

        They are heard until `taken`, which ends the step.
        """
        if weights.sharded(model):
            return None
        heard = self._heard = Heard()
        if not self._of_step:
            for parameter in model.parameters():
                if parameter.requires_grad:
                    self._of_step.append(parameter.register_hook(self._arrived))
        return heard

    def _arrived(self, gradient: Any) -> None:
        self._quietly(self._heard.add, gradient)

    def watch(self, optimizer: Any, named: Callable[[], Mapping[str, Any]]) -> None:
        """Look at an optimizer's updates, and at some of its parameters."""
        _remove(self._of_optimizer)
        inner = getattr(optimizer, "optimizer", optimizer)
        if inner is not None and hasattr(inner, "register_step_pre_hook"):

            def before(own: Any, *_: Any) -> None:
                self._quietly(self.before_update, own, named)

            def after(*_: Any) -> None:
                self._quietly(self.after_update)

            self._of_optimizer.append(inner.register_step_pre_hook(before))
            self._of_optimizer.append(inner.register_step_post_hook(after))

    def before_update(self, optimizer: Any, named: Callable[[], Mapping[str, Any]]) -> None:
        """The rate that is used, and some parameters before they are moved."""
        self.rate = float(optimizer.param_groups[0]["lr"])
        scale = getattr(optimizer, "grad_scale", None)  # one that is divided by only in the update
        trained = {n: p for n, p in named().items() if p.requires_grad}
        self._moves = weights.Moves(trained, 1.0 if scale is None else float(scale))

    def after_update(self) -> None:
        """How far they were moved."""
        if self._moves is not None:
            self.parameters, self._moves = self._moves.figures(), None

    def taken(self) -> tuple[float | None, list[dict[str, object]]]:
        """Rate and parameters of the step that was just made; its hooks are removed."""
        _remove(self._of_step)
        found = self.rate, self.parameters
        self.rate, self.parameters, self._heard = None, [], Heard()
        return found

    def close(self) -> None:
        """Nothing is heard any more."""
        self.taken()
        self._moves = None
        _remove(self._of_optimizer)


def loss_scale(trainer: Any) -> float:
    """What losses are multiplied with so that small gradients do not vanish in half precision."""
    scaler = getattr(trainer.accelerator, "scaler", None)
    if scaler is not None and hasattr(scaler, "get_scale"):
        return float(scaler.get_scale()) or 1.0
    engine = getattr(trainer, "deepspeed", None)
    scale = getattr(getattr(engine, "optimizer", None), "loss_scale", None)
    return 1.0 if scale is None or callable(scale) else float(scale) or 1.0


def _remove(hooks: list[Any]) -> None:
    while hooks:
        hooks.pop().remove()
