"""Means of token means: found by the divisor, spared where the denominator is that of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LookAt = Callable[..., list[Any]]
FIRES = {
    "masked mean": "loss = (loss_t * mask).sum() / mask.sum()\nloss = loss / grad_accum_steps",
    "guarded": (
        "l = (x * mask).sum() / mask.sum().clamp(min=1)\n(l / self.accumulation_steps).backward()"
    ),
    "in place": "loss = masked_mean(x, mask)\nloss /= args.gradient_accumulation_steps",
    "inverse": "loss = masked_mean(x, mask)\nloss = loss * (1.0 / accum_steps)",
    "length of a list": "for mb in micro_batches:\n    l = x[mask].mean() / len(micro_batches)",
    "function": "import torch as t\nl = t.sum(x * mask) / t.sum(mask)\nl = l / n_micro_batches",
    "selected": "l = torch.masked_select(x, mask).mean()\nl = l / grad_accum",
    "by name": "l = per_token_loss.mean()\nl = l / accum_steps",
    "cross entropy": "l = F.cross_entropy(x.view(-1, V), y.view(-1)) / accumulation_steps",
    "through a variable": "n = cfg.grad_accum_steps\nl = masked_mean(x, mask)\nl = l / n",
    "with a KL term": "pg = masked_mean(a, mask)\nkl = k.mean()\nl = (pg + 0.1 * kl) / accum_steps",
    "model": (
        "m = AutoModelForCausalLM.from_pretrained(p)\nout = model(**batch)\n"
        "l = out.loss / accum_steps"
    ),
    "list, stacked": (
        "ls = []\nfor mb in micros:\n    ls.append(masked_mean(x, mask))\n"
        "l = torch.stack(ls).mean()"
    ),
    "list, summed": (
        "ls = []\nfor micro in split(b):\n    ls.append((x * m_mask).sum() / m_mask.sum())\n"
        "l = sum(ls) / len(ls)"
    ),
    "accelerate": (
        "with accelerator.accumulate(model):\n    l = masked_mean(x, mask)\n"
        "    accelerator.backward(l)"
    ),
}
SPARES = {
    "tokens of the batch": "loss = (x * mask).sum() / num_items_in_batch",
    "all tokens": "loss = (x * mask).sum() / total_tokens\nloss.backward()",
    "sequence mean": "l = ((x * mask).sum(-1) / mask.sum(-1)).mean()\nl = l / accum_steps",
    "constant length": "l = (x * mask).sum() / (x.size(0) * max_len)\nl = l / accum_steps",
    "one batch": "loss = (x * mask).sum() / mask.sum()\nloss.backward()",
    "logging": "m['loss'] += masked_mean(x, mask).item() / accum_steps",
    "by sequence": "l = masked_mean(x, mask, dim=-1).mean() / accum_steps",
    "values": "l = value_loss.mean() / accum_steps",
    "unknown": "loss = compute_loss(model, inputs)\nloss = loss / gradient_accumulation_steps",
    "told the number": (
        "from transformers import AutoModelForCausalLM\n"
        "out = model(**b, num_items_in_batch=n)\nl = out.loss / accum_steps"
    ),
    "classifier": "out = model(**batch)\nloss = out.loss / gradient_accumulation_steps",
    "samples": (
        "ls = []\nfor row in rows:\n    ls.append(masked_mean(x, mask))\nl = sum(ls) / len(ls)"
    ),
    "labels of samples": "l = F.cross_entropy(logits, labels) / accum_steps",
    "tokens divided": "n = mask.sum() / accum_steps",
    "cross entropy summed": "l = F.cross_entropy(x, y, reduction='sum') / accum_steps",
}


@pytest.mark.parametrize("way", FIRES)
def test_each_micro_batch_counts_alike(look_at: LookAt, way: str) -> None:
    (found,) = look_at(FIRES[way])
    assert (found.pattern, found.cause) == ("mean_of_means", "grad.denominator")
    assert "mean of means 0.0625, over all tokens -0.1318" in found.shown
    assert "counts 150 times" in found.shown


@pytest.mark.parametrize("way", SPARES)
def test_each_token_or_each_sequence_counts_alike(look_at: LookAt, way: str) -> None:
    assert look_at(SPARES[way]) == []
