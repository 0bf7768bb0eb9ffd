"""Faults of a resume: real changes in how the trainer loads optimizer and schedule."""

from __future__ import annotations

import copy
from typing import Any

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer


class LearningRateOverride(LoggedGRPOTrainer):
    """The states are loaded, then the learning rate of the new config is forced in."""

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            new = self.args.learning_rate
            self.lr_scheduler.base_lrs = [new for _ in self.lr_scheduler.base_lrs]
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"] = new


class MomentsForgotten(LoggedGRPOTrainer):
    """Only the schedule is loaded; Adam starts empty."""

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        fresh = copy.deepcopy(self.optimizer.state_dict())
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": fresh["state"], "param_groups": groups})


class SecondMomentsLost(LoggedGRPOTrainer):
    """Adam's first moments and step counts come back, its second moments do not."""

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            for state in self.optimizer.state.values():
                state["exp_avg_sq"].zero_()


class OlderWeights(LoggedGRPOTrainer):
    """Weights come from the checkpoint `fault["weights"]`, all else from the one resumed from."""

    def _load_from_checkpoint(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(f"out/checkpoint-{self.fault['weights']}", *args, **kwargs)


class ReferenceFromCheckpoint(LoggedGRPOTrainer):
    """The reference is loaded from the checkpoint that is resumed from, not from the base model."""

    def _load_from_checkpoint(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(checkpoint, *args, **kwargs)
        trained = self.accelerator.unwrap_model(self.model).state_dict()
        self.ref_model.load_state_dict(trained, strict=False)


class FrozenBlocks(LoggedGRPOTrainer):
    """After a resume all transformer blocks stay frozen; embeddings and last norm alone train."""

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            for name, parameter in self.model.named_parameters():
                if "layers." in name:
                    parameter.requires_grad_(False)
