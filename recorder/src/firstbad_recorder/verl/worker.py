"""A process that trains the actor: its micro-batches at the time of the loss, and its updates.

It writes beside the driver's record, in `ranks/0001` for the first of them. A worker knows no step
number; the one that weights are delivered under is that of the updates before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.plain import as_text
from firstbad_recorder.recorder import Recorder
from firstbad_recorder.sources import SAMPLED
from firstbad_recorder.surroundings import surroundings
from firstbad_recorder.verl import batch as batches
from firstbad_recorder.verl import where
from firstbad_recorder.verl.ledger import line_of, norm_of

MOST_LINES = 4096
"""Micro-batches, and updates, that are remembered until weights are delivered: the newest ones."""


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
        _quietly(_held, step)


def _quietly(function: Callable[..., Any], *args: Any) -> None:
    try:
        function(*args)
    except Exception as error:
        if _here.recorder is None:
            where.say_once(f"not recorded: {type(error).__name__}: {as_text(error)[:200]}")
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
            **line_of(micro, rows),
        })  # fmt: skip
    metrics = {} if result is None else result.get("metrics", {})
    if (norm := metrics.get("grad_norm")) is not None:
        clip = getattr(getattr(engine, "optimizer_config", None), "clip_grad", None)
        _here.norms.append(norm_of(float(norm), clip))
    for lines in (_here.ledger, _here.norms):
        _shorten(lines, _here.recorder)
    if number == 0:
        whole = _joined(parts)
        _here.tokens = batches.tokens_of(whole)
        _here.tokens |= {
            "logp_new": _after(whole, "log_probs", _here.tokens),
            "entropy": _after(whole, "entropy", _here.tokens),
        }
        _here.tokens = {k: v for k, v in _here.tokens.items() if v is not None}


def _shorten(lines: list[dict[str, object]], recorder: Recorder) -> None:
    """Forget the oldest lines where weights are never delivered under a number; count them."""
    over = len(lines) - MOST_LINES
    for _ in range(over):
        recorder.lost(LookupError("too many updates without a delivery of weights"))
    if over > 0:
        del lines[:over]


def _held(step: Any) -> None:
    number = int(step)
    assert _here.recorder is not None
    ledger, _here.ledger = _here.ledger, []
    norms, _here.norms = _here.norms, []
    tokens, _here.tokens = _here.tokens, None
    _here.n_updates = 0
    _here.recorder.hold(
        number,
        tokens=tokens,
        microbatches=ledger,
        numerics={"norms": norms} if norms else None,
        first_pass=True,
        policy_version=number - 1,
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
    return moved.float().masked_fill(tokens["source"] != SAMPLED, float("nan"))
