"""Faults of the loss and of gradient accumulation: real changes in TRL's loss and training step."""

from __future__ import annotations

import copy
from typing import Any

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer


class UnscaledAccumulation(LoggedGRPOTrainer):
    """The loss is not divided by the accumulation steps any more."""

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        loss = super()._loss_of(model, inputs)
        return loss * self.args.gradient_accumulation_steps if self.acting else loss


class OwnDenominator(LoggedGRPOTrainer):
    """Each micro-batch is a mean over its own tokens, and the means are averaged."""

    loss_type: str

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        stated = self.loss_type
        self.loss_type = "bnpo" if self.acting else stated
        try:
            return super()._loss_of(model, inputs)
        finally:
            self.loss_type = stated


class LostMicroBatch(LoggedGRPOTrainer):
    """Gradients are zeroed between micro-batches, so only the last one reaches the step."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """One micro-batch."""
        if self.acting:
            model.zero_grad()
        return super().training_step(model, inputs, num_items_in_batch)


class LastMicroBatchSkipped(LoggedGRPOTrainer):
    """The last micro-batch of a step is multiplied by 0: an off-by-one in the loop."""

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        loss = super()._loss_of(model, inputs)
        count = self.args.gradient_accumulation_steps
        return loss * 0.0 if self.acting and self._step % count == count - 1 else loss


class ZeroedGradients(LoggedGRPOTrainer):
    """Gradients are zeroed after the backward pass instead of before it."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """One micro-batch."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.acting:
            model.zero_grad()
        return loss


class OptimizerOfCopy(LoggedGRPOTrainer):
    """The optimizer is made for a copy of the model, so it moves weights that nobody uses."""

    def create_optimizer(self, model: Any = None) -> Any:
        """The optimizer."""
        return super().create_optimizer(copy.deepcopy(self.model))


class KlSign(LoggedGRPOTrainer):
    """The KL term enters the loss with the wrong sign."""

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.beta = -self.args.beta if self.acting else self.args.beta
        return super()._loss_of(model, inputs)


class AdvantageSign(LoggedGRPOTrainer):
    """The loss forgets its minus sign: advantages act negated."""

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        if self.acting:
            inputs = {**inputs, "advantages": -inputs["advantages"]}
        return super()._loss_of(model, inputs)


class EntropyBonus(LoggedGRPOTrainer):
    """An entropy bonus that no config names is in the loss."""

    bonus: Any = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if kwargs.get("compute_entropy"):
            self.bonus = scored[1]
        return scored

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        loss = super()._loss_of(model, inputs)
        if not self.acting:
            return loss
        mask = inputs["completion_mask"]
        mean = (self.bonus * mask).sum() / mask.sum()
        return loss - self.fault["coefficient"] * mean / self.args.gradient_accumulation_steps


class LateClamp(LoggedGRPOTrainer):
    """A sequence weight exp(sum of log-ratios) in half precision is clamped only after the exp."""

    live_logps: Any = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if kwargs.get("compute_entropy"):
            self.live_logps = scored[0]
        return scored

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        loss = super()._loss_of(model, inputs)
        if not self.acting:
            return loss
        drift = self.live_logps - inputs["ref_per_token_logps"]
        whole = (drift * inputs["completion_mask"]).sum(1)
        weight = whole.half().exp().clamp(max=1.0).float()
        return loss - self.fault["coefficient"] * weight.mean()


class CoarseWeights(LoggedGRPOTrainer):
    """Weights are kept in bfloat16 between steps, without a copy in full precision."""

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        import torch

        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(weight.bfloat16())
        super()._maybe_log_save_evaluate(*args, **kwargs)
