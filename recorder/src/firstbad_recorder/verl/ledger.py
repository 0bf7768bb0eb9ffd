"""Figures of one micro-batch and of one update, as the losses of verl compute them."""

from __future__ import annotations

import math
from typing import Any

from firstbad_recorder.verl.batch import Batch

_MOST_RATIOS = 2**20
"""Of a micro-batch that quantiles are taken of at most."""
_BY_SEQUENCE = ("gspo", "geo_mean")
"""Losses whose ratio is one of whole sequences: those of tokens are not what they clip."""
_CLIP_RATIOS = ("vanilla", "clip_cov", "cispo")
"""Losses to which `clip_ratio_low` and `_high` are bounds of a token's ratio."""


def line_of(micro: dict[str, Any], rows: Batch) -> dict[str, object]:
    """Figures of a line of microbatches.jsonl.

    Args:
        micro: What the loss was called with, by verl's names, and its `loss` and `config`.
        rows: The same as rows on the host.
    """
    import torch

    line: dict[str, object] = {"loss": float(micro["loss"])}
    masks = rows.responses.get("response_mask")
    mask = None if masks is None else torch.cat(masks).bool()
    if mask is not None:
        line["n_tokens"] = int(mask.sum())
    line |= _divided(micro)
    if "log_probs" not in rows.facts or "old_log_probs" not in rows.responses or mask is None:
        return line
    new = [row[n - 1 : -1] for row, n in zip(rows.facts["log_probs"], rows.widths)]
    away = (torch.cat(new).float() - torch.cat(rows.responses["old_log_probs"]).float())[mask]
    if away.numel():
        line |= {**_ratios(away, micro["config"]), "kl_old": float(-away.mean())}
    return line


def norm_of(before: float, clip: Any) -> dict[str, object]:
    """A line of `norms` of numerics.json, of the norm before clipping."""
    found: dict[str, object] = {"before_clip": before}
    if clip is not None:
        found["clip_value"] = float(clip)
        if math.isfinite(before):  # else verl makes no update
            found["after_clip"] = min(before, float(clip))
    return found


def _loss_mode(config: Any) -> str:
    """The loss function; in bypass mode the one that it leads to."""
    settings = getattr(config, "policy_loss", None) or {}
    mode = str(settings.get("loss_mode", "vanilla"))
    if mode != "bypass_mode":
        return mode
    correction = settings.get("rollout_correction", None) or {}
    kind = correction.get("loss_type", "ppo_clip")
    return "vanilla" if kind == "ppo_clip" else str(kind)


def _divided(micro: dict[str, Any]) -> dict[str, object]:
    """What the sum over tokens is divided by and multiplied with, as far as it is known here."""
    config = micro["config"]
    loss, mode = _loss_mode(config), str(config.loss_agg_mode)
    if loss == "geo_mean":
        return {}  # a mean over the rows of this place, whatever the mode
    line: dict[str, object] = {}
    if (size := micro.get("dp_size")) is not None:
        line = {"scale": float(size), "reduction": "mean"}
    if loss == "sapo":
        mode = "seq-mean-token-mean"  # whatever is set
    if mode == "token-mean":
        divided = micro.get("batch_num_tokens")
    elif mode == "token-sum":
        divided = 1.0
    elif mode == "seq-mean-token-sum-norm":
        divided = None  # also by a width that this place does not know
    else:
        divided = micro.get("global_batch_size")
    return line if divided is None else {**line, "denominator": float(divided)}


def _ratios(away: Any, config: Any) -> dict[str, object]:
    """Ratios of (n,) trained tokens from their logarithms, where the loss is made of them."""
    import torch

    loss = _loss_mode(config)
    if loss in _BY_SEQUENCE:
        return {}
    ratio = torch.exp(away[:_MOST_RATIOS])
    p50, p95, p99 = torch.quantile(ratio, torch.tensor([0.5, 0.95, 0.99])).tolist()
    found: dict[str, object] = {
        "ratio_p50": p50,
        "ratio_p95": p95,
        "ratio_p99": p99,
        "ratio_max": float(ratio.max()),
    }
    low, high = (_bound(config, name) for name in ("clip_ratio_low", "clip_ratio_high"))
    if loss in _CLIP_RATIOS and low is not None and high is not None:
        found["clip_low_share"] = float((ratio < 1 - low).float().mean())
        found["clip_high_share"] = float((ratio > 1 + high).float().mean())
    return found


def _bound(config: Any, name: str) -> float | None:
    """A side of the band; `clip_ratio` where it is not set, as verl has it."""
    value = getattr(config, name, None)
    if value is None:
        value = getattr(config, "clip_ratio", None)
    return None if value is None else float(value)
