"""Faults of how scores meet rows and groups: real changes between TRL's rewards and advantages."""

from __future__ import annotations

from typing import Any

import torch

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer


class ShiftedRows(LoggedGRPOTrainer):
    """Scores come back one row late against the completions."""

    def _calculate_rewards(self, *args: Any) -> Any:
        scores = super()._calculate_rewards(*args)
        return torch.roll(scores, 1, dims=0) if self.acting else scores


class ScrambledRows(LoggedGRPOTrainer):
    """Scores of the first reward come back in the order the workers finished, not in row order."""

    def _calculate_rewards(self, *args: Any) -> Any:
        scores = super()._calculate_rewards(*args)
        if self.acting:
            scores[:, 0] = scores[torch.randperm(len(scores)), 0]
        return scores


class BatchNormalised(LoggedGRPOTrainer):
    """Baseline and spread are taken over the whole batch although the config says group."""

    def _calculate_rewards(self, *args: Any) -> Any:
        scores = super()._calculate_rewards(*args)
        if self.acting:
            self.num_generations = len(scores)  # the grouping that follows uses this size
        return scores

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self.num_generations = self.args.num_generations


class StridedGroups(LoggedGRPOTrainer):
    """Groups are read with the wrong stride, so each mixes completions of all prompts."""

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.acting:
            scores = torch.tensor(list(self._logs["rewards"].values())).t()
            # Should be view(-1, num_generations).
            groups = (scores @ self.reward_weights).view(self.num_generations, -1)
            advantages = ((groups - groups.mean(0)) / (groups.std(0) + 1e-4)).reshape(-1)
            batch["advantages"] = advantages
            self._logs["advantages"].extend(advantages.tolist())
        return batch
