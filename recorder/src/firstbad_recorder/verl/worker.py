"""A process that trains the actor: its micro-batches at the time of the loss, and its updates.

It writes beside the driver's record, in `ranks/0001` for the first of them. A worker knows no step
number; the one that weights are delivered under is that of the updates before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.recorder import Recorder
from firstbad_recorder.surroundings import surroundings
from firstbad_recorder.verl import batch as batches
from firstbad_recorder.verl import where

_ONE = 2**20
"""Ratios of a micro-batch that quantiles are taken of at most."""


@dataclass
class _Update:
    """One call of the engine's `train_batch`."""

    micros: list[dict[str, Any]] = field(default_factory=list)
    """What each micro-batch was computed from, on the device."""


@dataclass
class _Worker:
    """Of this process."""

    recorder: Recorder | None = None
    update: _Update | None = None
    """The one that runs now."""
    ledger: list[dict[str, object]] = field(default_factory=list)
    norms: list[dict[str, object]] = field(default_factory=list)
    tokens: dict[str, Any] | None = None
    """Of the first update since weights were delivered."""
    n_updates: int = 0


_here = _Worker()


def begin(engine: Any) -> None:
    """The engine begins an update; whose it is shows by its loss."""
    _here.update = _Update() if where.stated() is not None else None


def lost(config: Any, output: Any, data: Any, result: Any) -> None:
    """The loss of one micro-batch was computed."""
    if _here.update is not None:
        _quietly(_taken, _here.update, config, output, data, result)
    elif where.stated() is None:
        where.say_once(f"{where.RECORD} is not set in this process: micro-batches not recorded")


def end(engine: Any, result: Any) -> None:
    """The update was made, or failed where there is no result."""
    update, _here.update = _here.update, None
    if update is not None and update.micros:
        _quietly(_finished, update, engine, result)


def flush(step: Any) -> None:
    """Weights of a step are delivered: write down the updates that led to them."""
    if step is not None and (_here.ledger or _here.norms):
        _quietly(_held, int(step))


def _quietly(function: Callable[..., Any], *args: Any) -> None:
    try:
        function(*args)
    except Exception as error:
        if _here.recorder is None:
            where.say_once(f"not recorded: {type(error).__name__}: {str(error)[:200]}")
        else:
            _here.recorder.lost(error)


def _taken(update: _Update, config: Any, output: Any, data: Any, result: Any) -> None:
    """Keep references to what the loss saw; nothing is computed or moved here."""
    names = (
        "input_ids", "attention_mask", "prompts", "responses", "response_mask", "old_log_probs",
        "rollout_log_probs", "ref_log_prob", "advantages", "batch_num_tokens",
        "global_batch_size", "dp_size",
    )  # fmt: skip
    there = set(data.keys())
    micro = {name: data[name] for name in names if name in there}
    for name in ("log_probs", "entropy"):
        if (values := output.get(name, None)) is not None:
            micro[name] = values.detach()
    micro["loss"] = result[0].detach()
    micro["config"] = config
    update.micros.append(micro)


def _finished(update: _Update, engine: Any, result: Any) -> None:
    if not engine.is_mp_src_rank_with_outputs():
        return  # another process of this model-parallel group has the same rows
    number, _here.n_updates = _here.n_updates, _here.n_updates + 1
    rank = _rank()
    if _here.recorder is None:
        folder = where.stated()
        assert folder is not None
        about: dict[str, Any] = {**surroundings(), **where.options(), "device": _device()}
        _here.recorder = Recorder(folder, rank=rank + 1, **about)
    parts = [_rows(micro) for micro in update.micros]
    for i, (micro, rows) in enumerate(zip(update.micros, parts)):
        _here.ledger.append({
            "update": number, "rank": rank, "microbatch": i, "n_samples": len(rows.ids),
            **_line(micro, rows),
        })  # fmt: skip
    metrics = {} if result is None else result.get("metrics", {})
    if (norm := metrics.get("grad_norm")) is not None:
        clip = getattr(getattr(engine, "optimizer_config", None), "clip_grad", None)
        _here.norms.append(_norm(float(norm), clip))
    if number == 0:
        whole = _joined(parts)
        _here.tokens = batches.tokens_of(whole)
        _here.tokens |= {
            "logp_new": _after(whole, "log_probs", _here.tokens),
            "entropy": _after(whole, "entropy", _here.tokens),
        }
        _here.tokens = {k: v for k, v in _here.tokens.items() if v is not None}


def _held(step: int) -> None:
    assert _here.recorder is not None
    ledger, _here.ledger = _here.ledger, []
    norms, _here.norms = _here.norms, []
    tokens, _here.tokens = _here.tokens, None
    _here.n_updates = 0
    _here.recorder.hold(
        step,
        tokens=tokens,
        microbatches=ledger,
        numerics={"norms": norms} if norms else None,
        first_pass=True,
        policy_version=step - 1,
    )


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _rank() -> int:
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def _rows(micro: dict[str, Any]) -> batches.Batch:
    """Rows of a micro-batch, on the host; V0 gives padded responses, V1 ragged ones."""
    import torch

    ids = [row.cpu() for row in micro["input_ids"].unbind()]
    responses = micro["responses"]
    if responses.is_nested:
        lengths = [len(row) for row in responses.unbind()]
    else:
        width = micro["prompts"].shape[1]
        lengths = micro["attention_mask"][:, width:].sum(dim=1).tolist()
    arrays: dict[str, list[Any]] = {}
    for name in (
        "response_mask", "old_log_probs", "rollout_log_probs", "ref_log_prob", "advantages"
    ):  # fmt: skip
        if name in micro:
            arrays[name] = [row[:n].detach().cpu() for row, n in zip(micro[name].unbind(), lengths)]
    flat: dict[str, Sequence[Any]] = {}
    for name in ("log_probs", "entropy"):
        if name in micro:
            values = micro[name]
            values = (values.values() if values.is_nested else values).reshape(-1).cpu()
            flat[name] = list(values.split([len(row) for row in ids]))
    return batches.Batch(
        ids=ids,
        attended=[torch.ones_like(row) for row in ids],
        widths=[len(row) - n for row, n in zip(ids, lengths)],
        responses=arrays,
        facts=flat,
    )


def _joined(parts: Sequence[batches.Batch]) -> batches.Batch:
    names = set.intersection(*(set(part.responses) for part in parts))
    facts = set.intersection(*(set(part.facts) for part in parts))
    return batches.Batch(
        ids=[row for part in parts for row in part.ids],
        attended=[row for part in parts for row in part.attended],
        widths=[n for part in parts for n in part.widths],
        responses={n: [row for part in parts for row in part.responses[n]] for n in names},
        facts={n: [row for part in parts for row in part.facts[n]] for n in facts},
    )


def _after(whole: batches.Batch, name: str, tokens: dict[str, Any]) -> Any:
    """(N,) what the model says of each token, which its output has one place earlier."""
    import torch

    rows = whole.facts.get(name)
    if rows is None:
        return None
    moved = torch.cat([torch.cat([row.new_full((1,), float("nan")), row[:-1]]) for row in rows])
    return moved.float().masked_fill(tokens["source"] != batches.SAMPLED, float("nan"))


def _line(micro: dict[str, Any], rows: batches.Batch) -> dict[str, object]:
    """Figures of a line of microbatches.jsonl."""
    import torch

    config, mode = micro["config"], str(micro["config"].loss_agg_mode)
    line: dict[str, object] = {"loss": float(micro["loss"])}
    masks = rows.responses.get("response_mask")
    mask = None if masks is None else torch.cat(masks).bool()
    if mask is not None:
        line["n_tokens"] = int(mask.sum())
    if (size := micro.get("dp_size")) is not None:
        line["scale"] = float(size)
        line["reduction"] = "mean"
    if mode == "token-mean":
        divided = micro.get("batch_num_tokens")
    elif mode == "token-sum":
        divided = 1.0
    elif mode == "seq-mean-token-sum-norm":
        divided = None  # also by a width that this place does not know
    else:
        divided = micro.get("global_batch_size")
    if divided is not None:
        line["denominator"] = float(divided)
    if "log_probs" not in rows.facts or "old_log_probs" not in rows.responses or mask is None:
        return line
    new = [row[n - 1 : -1] for row, n in zip(rows.facts["log_probs"], rows.widths)]
    away = (torch.cat(new).float() - torch.cat(rows.responses["old_log_probs"]).float())[mask]
    if not away.numel():
        return line
    ratio = torch.exp(away[:_ONE])
    p50, p95, p99 = torch.quantile(ratio, torch.tensor([0.5, 0.95, 0.99])).tolist()
    low = 1 - float(config.clip_ratio_low)
    high = 1 + float(config.clip_ratio_high)
    return line | {
        "ratio_p50": p50,
        "ratio_p95": p95,
        "ratio_p99": p99,
        "ratio_max": float(ratio.max()),
        "clip_low_share": float((ratio < low).float().mean()),
        "clip_high_share": float((ratio > high).float().mean()),
        "kl_old": float(-away.mean()),
    }


def _norm(before: float, clip: Any) -> dict[str, object]:
    found: dict[str, object] = {"before_clip": before, "clip_value": clip}
    if clip is not None and before < float("inf"):
        found["after_clip"] = min(before, float(clip))
    return found
