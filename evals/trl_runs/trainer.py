"""TRL's `GRPOTrainer` with a few debug metrics and batch dumps; nothing here is faulty.

Faults override `_finish_batch`, `_loss_of` or TRL's own methods.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

LOG = logging.getLogger("lab")
CONSOLE_KEYS = (
    "loss",
    "grad_norm",
    "learning_rate",
    "reward",
    "kl",
    "entropy",
    "completions/mean_length",
    "step_time",
)


class LoggedGRPOTrainer(GRPOTrainer):
    """The trainer of a run without a fault."""

    def __init__(self, *args: Any, fault: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Take TRL's arguments, and in `fault` what a subclass needs to know."""
        super().__init__(*args, **kwargs)
        self.fault = fault or {}
        self.dump_dir = Path("batch_dumps")
        self.dump_dir.mkdir(exist_ok=True)
        self._scored: list[Any] = []

    @property
    def step_now(self) -> int:
        """Number of the optimizer step in progress, from 1."""
        return int(self.state.global_step) + 1

    @property
    def acting(self) -> bool:
        """True from the step on at which the change of a subclass is switched on."""
        return bool(self.step_now >= self.fault.get("onset", 1))

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Hook: the scored generation batch before it is shuffled and split."""
        return batch

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Hook: the loss of one micro-batch."""
        return super()._compute_loss(model, inputs)

    def _score_again(self, model: Any, batch: dict[str, Any]) -> Any:
        """Log-probs of the batch as it stands now."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        width = batch["completion_ids"].size(1)
        with torch.no_grad():
            return self._get_per_token_logps_and_entropies(model, ids, mask, width)[0]

    def _rescore_reference(self, batch: dict[str, Any]) -> None:
        """Reference log-probs again, after ids or masks of the batch changed."""
        if "ref_per_token_logps" in batch:
            batch["ref_per_token_logps"] = self._score_again(self.ref_model, batch)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return self._finish_batch(super()._generate_and_score_completions(inputs))

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if kwargs.get("compute_entropy"):
            self._scored = [x.detach().float() for x in scored[:2]]
        return scored

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        loss = self._loss_of(model, inputs)
        logps, entropies = self._scored
        loss_mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        old = inputs.get("old_per_token_logps", logps).float()
        ratio = torch.exp(logps - old)[loss_mask.bool()]
        values = {
            "ratio_mean": ratio.mean(),
            "ratio_max": ratio.max(),
            "ratio_min": ratio.min(),
            "trained_tokens": loss_mask.sum(),
            "adv_abs_mean": inputs["advantages"].abs().mean(),
        }
        for key, value in values.items():
            self._metrics["train"][f"debug/{key}"].append(value.item())
        first = self._step % self.args.gradient_accumulation_steps == 0
        if first and (self.step_now in (1, 2) or self.step_now % 10 == 0):
            self._dump(inputs, logps, entropies, loss_mask)
        return loss

    def _dump(self, inputs: dict[str, Any], logps: Any, entropies: Any, loss_mask: Any) -> None:
        """Write the micro-batch.

        `row_*` are the sampled rows where the loss works on other tensors.
        """
        ids = inputs.get("row_ids", inputs["completion_ids"])
        mask = inputs.get("row_mask", inputs["completion_mask"])
        prompts = inputs.get("row_prompt_ids", inputs["prompt_ids"])
        prompt_mask = inputs.get("row_prompt_mask", inputs["prompt_mask"])
        width = ids.size(1)
        arrays = {
            "prompt_ids": prompts.numpy().astype(np.int16),
            "prompt_mask": prompt_mask.bool().numpy(),
            "completion_ids": ids.numpy().astype(np.int16),
            "completion_mask": mask.bool().numpy(),
            "loss_mask": loss_mask.bool().numpy(),
            "advantages": _half(inputs["advantages"]),
            "logps": _half(logps[:, -width:]),
            "entropies": _half(entropies[:, -width:]),
        }
        for key in ("ref_per_token_logps", "old_per_token_logps"):
            if key in inputs:
                arrays[key] = _half(inputs[key][:, -width:])
        np.savez_compressed(self.dump_dir / f"step_{self.step_now:05d}.npz", **arrays)


def _half(tensor: Any) -> Any:
    """float16 numpy copy."""
    return tensor.detach().float().numpy().astype(np.float16)


class ConsoleLines(TrainerCallback):
    """One console line per log."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Write the line."""
        shown = [f"{key}={logs[key]:.4g}" for key in CONSOLE_KEYS if logs.get(key) is not None]
        LOG.info("step %d/%d %s", state.global_step, state.max_steps, " ".join(shown))


class LineFormat(logging.Formatter):
    """Time, level unless INFO, message."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        return f"{self.formatTime(record, '%H:%M:%S')} {level}{record.getMessage()}"
