"""Faults of the log-probs: real changes in how TRL's trainer computes or keeps them."""

from __future__ import annotations

import copy
from typing import Any

import torch

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer


class CoarseLogProbs(LoggedGRPOTrainer):
    """Log-probs and entropies are reduced and subtracted in bfloat16."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **kwargs: Any
    ) -> Any:
        if not self.acting:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **kwargs
            )
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
        kept = logits[:, -logits_to_keep - 1 : -1] / self.temperature
        logps = torch.log_softmax(kept.bfloat16(), dim=-1)
        picked = logps.gather(-1, input_ids[:, -logits_to_keep:, None]).squeeze(-1)
        entropies = -(logps.exp() * logps).sum(-1)
        absent = attention_mask[:, -logits_to_keep:] == 0
        scored = picked.masked_fill(absent, 0), entropies.masked_fill(absent, 0).detach()
        if kwargs.get("compute_entropy"):
            self._scored = [x.detach().float() for x in scored]
        return *scored, None


class StaleOldLogProbs(LoggedGRPOTrainer):
    """The old log-probs are taken from a copy of the policy that is refreshed too rarely."""

    stale: Any = None

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.acting:
            if self.stale is None or self.step_now % self.fault["refresh"] == 0:
                self.stale = copy.deepcopy(self.model)
            batch["old_per_token_logps"] = self._score_again(self.stale, batch)
        return batch


class _OtherPositions(LoggedGRPOTrainer):
    """The trainer's forward gets position ids that are not those of the sampler."""

    def _positions(self, mask: Any, width: int) -> Any:
        raise NotImplementedError

    def _applies_to(self, model: Any) -> bool:
        return True

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **kwargs: Any
    ) -> Any:
        plain, target = model.forward, self.accelerator.unwrap_model(model)

        def forward(*args: Any, **passed: Any) -> Any:
            mask = passed["attention_mask"]
            positions = self._positions(mask, mask.size(1) - logits_to_keep)
            return plain(*args, position_ids=positions, **passed)

        changed = self.acting and self._applies_to(model)
        if changed:
            target.forward = forward
        try:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **kwargs
            )
        finally:
            if changed:
                target.forward = plain


class PaddedPositions(_OtherPositions):
    """Prompt positions skip the padding, completion positions go on from the padded width."""

    def _positions(self, mask: Any, width: int) -> Any:
        positions = torch.arange(mask.size(1)).repeat(mask.size(0), 1)
        positions[:, :width] = (mask[:, :width].cumsum(1) - 1).clamp(min=0)
        return positions


class PolicyPositions(PaddedPositions):
    """The same for the policy alone: the reference is scored by code that counts right."""

    def _applies_to(self, model: Any) -> bool:
        return model is not self.ref_model


class OnePosition(_OtherPositions):
    """Positions are counted over the prompt's mask, so all completion tokens share the last one."""

    def _positions(self, mask: Any, width: int) -> Any:
        counted = mask.clone()
        counted[:, width:] = 0
        return (counted.cumsum(1) - 1).clamp(min=0)


class CoarseReference(LoggedGRPOTrainer):
    """The reference is loaded in so few bits that it is another model."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the same arguments as the trainer without a fault."""
        super().__init__(*args, **kwargs)
        levels = 2 ** (self.fault["bits"] - 1) - 1
        with torch.no_grad():
            for weight in self.ref_model.parameters():
                unit = weight.abs().amax(dim=-1, keepdim=True) / levels
                weight.copy_((weight / unit).round() * unit)


class FlooredLogProbs(LoggedGRPOTrainer):
    """Log-probs are clamped from below, so that less likely tokens get no gradient."""

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        logps, *rest = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self.acting:
            logps = logps.clamp(min=self.fault["floor"])
            if kwargs.get("compute_entropy"):
                self._scored[0] = logps.detach().float()
        return logps, *rest


class ClampedRatio(LoggedGRPOTrainer):
    """The log-ratio is clamped far inside the clip of the objective."""

    old: Any = None

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.old = inputs.get("old_per_token_logps")
        return super()._loss_of(model, inputs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        logps, *rest = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self.acting and kwargs.get("compute_entropy") and self.old is not None:
            limit = self.fault["limit"]
            logps = self.old + (logps - self.old).clamp(-limit, limit)
            self._scored[0] = logps.detach().float()
        return logps, *rest


class Retokenised(LoggedGRPOTrainer):
    """Replies are tokenised again from text, where the last word and the tag are one unknown."""

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        if not self.acting:
            return batch
        tag = self._tokenizer.convert_tokens_to_ids("</answer>")
        ids, mask = batch["completion_ids"].clone(), batch["completion_mask"].clone()
        for row, kept in zip(ids, mask, strict=True):
            n = int(kept.sum())
            places = [i for i in range(1, n) if int(row[i]) == tag]
            if places:
                last = places[-1]
                row[last - 1] = self._tokenizer.unk_token_id
                row[last : n - 1] = row[last + 1 : n].clone()
                row[n - 1] = self._tokenizer.pad_token_id
                kept[n - 1] = 0
        batch["completion_ids"], batch["completion_mask"] = ids, mask
        batch["num_items_in_batch"] = mask.sum()
        self._rescore_reference(batch)
        return batch
