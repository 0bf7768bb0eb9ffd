"""Faults of the loss mask: real changes in what TRL's loss is told to train on."""

from __future__ import annotations

from typing import Any

import torch

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer


class PaddingTrained(LoggedGRPOTrainer):
    """The mask is all ones, so padding after the end token is attended to and trained."""

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.acting:
            batch["row_mask"] = batch["completion_mask"]
            batch["completion_mask"] = torch.ones_like(batch["completion_mask"])
            batch["num_items_in_batch"] = batch["completion_mask"].sum()
            self._rescore_reference(batch)
        return batch


class PromptTrained(LoggedGRPOTrainer):
    """The border between prompt and completion is lost: the loss runs over both."""

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.acting:
            for key in ("ids", "mask"):
                prompt, completion = batch[f"prompt_{key}"], batch[f"completion_{key}"]
                batch[f"row_prompt_{key}"], batch[f"row_{key}"] = prompt, completion
                batch[f"prompt_{key}"] = torch.zeros_like(prompt[:, :1])
                batch[f"completion_{key}"] = torch.cat([prompt, completion], dim=1)
            batch["num_items_in_batch"] = batch["completion_mask"].sum()
            self._rescore_reference(batch)
        return batch


class EosUntrained(LoggedGRPOTrainer):
    """The end token is left out of the loss mask."""

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.acting:
            inside = batch["completion_ids"] != self._tokenizer.eos_token_id
            batch["tool_mask"] = batch["completion_mask"] * inside
            batch["num_items_in_batch"] = batch["tool_mask"].sum()
        return batch


class TailDropped(LoggedGRPOTrainer):
    """Completion tokens past a width left over from another config get no loss."""

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.acting:
            place = torch.arange(batch["completion_ids"].size(1)).unsqueeze(0)
            batch["tool_mask"] = batch["completion_mask"] * (place < self.fault["width"])
            batch["num_items_in_batch"] = batch["tool_mask"].sum()
        return batch


class ShiftedMask(LoggedGRPOTrainer):
    """The loss mask sits a token or more too far right: first ones out, padding in."""

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.acting:
            ids, mask = batch["completion_ids"], batch["completion_mask"]
            extra = mask.new_zeros(mask.size(0), self.fault.get("by", 1))
            batch["completion_ids"] = torch.cat([ids, extra + self._tokenizer.pad_token_id], dim=1)
            batch["row_mask"] = torch.cat([mask, extra], dim=1)
            batch["tool_mask"] = torch.cat([extra, mask], dim=1)
            batch["completion_mask"] = torch.maximum(batch["row_mask"], batch["tool_mask"])
            batch["num_items_in_batch"] = batch["tool_mask"].sum()
            self._rescore_reference(batch)
        return batch
