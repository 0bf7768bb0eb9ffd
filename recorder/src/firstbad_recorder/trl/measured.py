"""Which tokens a trainer trains in one batch, and how strongly: by the gradient that arrives.

The same is measured here before a run as a record has it of each of its steps.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from firstbad_recorder.probes.denominators import OVER_ALL
from firstbad_recorder.probes.untouched import untouched
from firstbad_recorder.sources import SAMPLED
from firstbad_recorder.trl.aside import replaced
from firstbad_recorder.trl.micro import (
    Micro,
    Pass,
    Settings,
    divisors,
    settings_of_loss,
    slope,
    trained,
)
from firstbad_recorder.trl.rows import SOURCE, Generation, Scored
from firstbad_recorder.trl.settings import ends_of, tokenizer_of
from firstbad_recorder.trl.step import placed, sources_in
from firstbad_recorder.trl.wrap import named

MEASURED = "measured by the gradient that reaches their log-probs"
AS_STATED = "as the mask says: no gradient could be measured"
OFF = 0.02
"""Share by which a divisor may miss another one and still be the same."""
MOST_OFF = 0.1
"""Share of tokens that may have another divisor than the middle one."""


def measured(
    trainer: Any, parts: Sequence[dict[str, Any]], scaled: Callable[[int], Any]
) -> tuple[list[Micro], list[Any], Settings] | None:
    """The micro-batches after a pass in both directions, and the trained tokens of each, (R, W).

    None where the trainer's loss shows no log-probs of the rows that it got, or raises.

    Args:
        trainer: The trainer; it is left as it was.
        parts: Micro-batches with their sources.
        scaled: A context in which the trainer scales its loss for so many micro-batches.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    micros = []
    try:
        with untouched(model), scaled(len(parts)):
            settings = settings_of_loss(trainer)
            for number, part in enumerate(parts):
                micro = Micro(dict(part), Generation(0, []), [], 0, number)
                with _heard(trainer, micro):
                    loss = trainer.compute_loss(trainer.model, dict(part))
                loss.backward()
                micros.append(micro)
            if not all(_tells(micro) for micro in micros):
                return None
            masks = [trained(micro, settings, slope(micro, settings)) for micro in micros]
            return micros, masks, settings
    except Exception:  # what is wrong with the loss is told by the checks of the loss
        return None


@contextlib.contextmanager
def _heard(trainer: Any, micro: Micro) -> Iterator[None]:
    """The pass of a micro-batch that is differentiated, as `attach` hears it."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def score(*args: Any, **more: Any) -> Any:
            found = original(*args, **more)
            logp = found[0]
            if micro.passed is None and logp.requires_grad:
                given = named(("model", "input_ids", "attention_mask"), original, args, more)
                ids, seen = given["input_ids"], given["attention_mask"]
                again = functools.partial(original, *args, **more)
                micro.passed = Pass(ids, seen, int(logp.shape[1]), logp.detach(), None, again)
                logp.register_hook(micro.passed.take)
            return found

        return score

    name = "_get_per_token_logps_and_entropies"
    with replaced(trainer, name, around(getattr(trainer, name))):
        yield


def _tells(micro: Micro) -> bool:
    """Whether a gradient arrived, at rows that lie as the given ones do."""
    import torch

    passed = micro.passed
    if passed is None or passed.gradient is None:
        return False
    ids = torch.cat([micro.inputs["prompt_ids"], micro.inputs["completion_ids"]], dim=1)
    width = min(ids.shape[1], passed.ids.shape[1])
    return bool((ids[:, -width:] == passed.ids[:, -width:]).all())


def masks_measured(micros: Sequence[Micro], masks: Sequence[Any]) -> dict[str, Any]:
    """Arguments of the mask probe, prompts included: what the gradient says is trained."""
    found: dict[str, Any] = {"source": [], "loss_mask": [], "attention_mask": []}
    for micro, mask in zip(micros, masks):
        assert micro.passed is not None
        width = micro.passed.ids.shape[1]
        found["source"] += sources_in(micro).tolist()
        found["loss_mask"] += placed(mask.long(), width, 0).tolist()
        found["attention_mask"] += micro.passed.attended.long().tolist()
    return {**found, "note": MEASURED}


def masks_stated(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as the masks of a batch with its sources say."""
    import torch

    tools = batch.get("tool_mask")
    made = batch["completion_mask"]
    blank = torch.zeros_like(batch["prompt_mask"])
    return {
        "source": batch[SOURCE].tolist(),
        "loss_mask": torch.cat([blank, made if tools is None else made * tools], 1).long().tolist(),
        "attention_mask": torch.cat([batch["prompt_mask"], made], dim=1).long().tolist(),
        "note": AS_STATED,
    }


def generated_ids(trainer: Any, batch: Mapping[str, Any], scored: Scored) -> Scored:
    """With the ids that were generated: where nobody told them, up to the first stop token."""
    ids = batch["completion_ids"].tolist()
    if len(scored.ids) == len(ids):
        return scored
    stops, pad = ends_of(trainer), tokenizer_of(trainer).pad_token_id
    return Scored(ids=[_generated(row, stops, pad) for row in ids])


def _generated(ids: list[int], stops: set[int], pad: int | None) -> list[int]:
    """Up to the first stop token; a row that was cut has none, and ends before its padding."""
    end = next((i for i, token in enumerate(ids) if token in stops or token == pad), len(ids))
    return ids[: end + 1] if end < len(ids) and ids[end] in stops else ids[:end]


def finishes(trainer: Any, scored: Scored) -> list[str]:
    """Why each row ended, by its last token."""
    ends = {*ends_of(trainer), tokenizer_of(trainer).pad_token_id}
    return ["stop" if len(ids) and int(ids[-1]) in ends else "length" for ids in scored.ids]


def scale_of(
    trainer: Any, micros: Sequence[Micro], masks: Sequence[Any], settings: Settings
) -> dict[str, Any] | None:
    """By what the gradient of all tokens is larger than that of the stated loss.

    None where the loss type is not known, tokens have different factors, or nothing tells.
    """
    factors = []
    totals = _tokens_of_all(trainer, micros, masks)
    for micro, mask in zip(micros, masks):
        wanted, kind = _meant(trainer, micro, mask, len(micros), totals)
        found, by = divisors(micro, mask, slope(micro, settings), settings.by_rows)
        if not wanted or found is None or by != kind:
            return None
        middle = float(found.median())
        apart = (found - middle).abs() > OFF * abs(middle)
        if not middle or float(apart.double().mean()) > MOST_OFF:
            return None
        factors.append(min((w / middle for w in wanted), key=lambda f: abs(f - 1)))
    if max(factors) - min(factors) > OFF * abs(max(factors, key=abs)):
        return None
    factor = sorted(factors)[len(factors) // 2]
    steps = int(trainer.args.gradient_accumulation_steps)
    return {"factor": factor, "loss": str(trainer.loss_type), "steps": steps}


def _tokens_of_all(trainer: Any, micros: Sequence[Micro], masks: Sequence[Any]) -> list[float]:
    """Trained tokens of all micro-batches, in the ways in which they can be counted.

    Which tokens are trained is for the check of the masks to say, not for that of a factor.
    """
    world = int(trainer.accelerator.num_processes)
    if world > 1:  # the trainer's own count is of all processes
        return [float(micros[0].inputs["num_items_in_batch"]) / world]
    sampled = sum(int((sources_in(micro) == SAMPLED).sum()) for micro in micros)
    stated = sum(int(micro.mask.sum()) for micro in micros)
    return [float(n) for n in (sum(int(mask.sum()) for mask in masks), stated, sampled)]


def _meant(
    trainer: Any, micro: Micro, mask: Any, n_parts: int, totals: list[float]
) -> tuple[list[float], str]:
    """What the stated loss divides by, and whether that weighs tokens or rows."""
    kind, n_rows = trainer.loss_type, len(mask)
    if kind in ("grpo", "sapo"):
        return [n_rows * n_parts], "rows"
    if kind == "bnpo":
        return [int(m.sum()) * n_parts for m in (mask, micro.mask)], "tokens"
    if kind == "dr_grpo":
        return [n_rows * int(trainer.max_completion_length) * n_parts], "tokens"
    if kind == "luspo":
        return [n_rows * n_parts], "tokens"
    if kind == "cispo" and float(trainer.epsilon_high) < 1:  # it scales all tokens itself
        return [], ""
    if kind == "vespo" and micro.inputs.get("importance_sampling_ratio") is not None:
        return [], ""  # it takes the engine's weights in a way of its own
    return (totals, "tokens") if kind in OVER_ALL else ([], "")
