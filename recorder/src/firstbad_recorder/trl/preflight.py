"""The probes of the preflight on TRL's own trainer: its loss, masks, accumulation and passes.

One batch is generated and scored as training would; the trainer, its random numbers and its
counters are as before afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from firstbad_recorder.preflight import Preflight
from firstbad_recorder.preflight import preflight as run_checks
from firstbad_recorder.probes.loss_function import Stated
from firstbad_recorder.probes.loss_input import LossInput
from firstbad_recorder.sources import PADDING, PROMPT, SAMPLED
from firstbad_recorder.surroundings import surroundings
from firstbad_recorder.trl.aside import as_before, replaced
from firstbad_recorder.trl.measured import (
    finishes,
    generated_ids,
    masks_measured,
    masks_stated,
    measured,
    scale_of,
)
from firstbad_recorder.trl.rows import SOURCE, Scored, sources
from firstbad_recorder.trl.settings import settings_of, tokenizer_of

FEW, FITTED = 8, 4
"""Rows that further passes are made on, and that are fitted."""
ACCUMULATED = 3
"""Micro-batches that are also passed as one batch: all of a step may not fit into memory."""


def preflight(trainer: Any, path: str | os.PathLike[str] | None = None) -> Preflight:
    """Check a TRL trainer before `train()`: a report, and `certificate.json` beside the record.

    Takes about as long as a generation, four updates on three micro-batches and a few on four rows.

    Args:
        trainer: A `GRPOTrainer` or a subclass.
        path: Folder of the record; `record` in the trainer's output folder unless given, as with
            `attach`.
    """
    folder = Path(trainer.args.output_dir) / "record" if path is None else Path(path)
    with as_before(trainer):
        batch, finish = _batch(trainer)
        size = trainer.args.per_device_train_batch_size
        parts = _split(batch, size)
        few = parts[:ACCUMULATED]
        rows = [_row(batch, i) for i in range(min(FEW, len(batch["completion_ids"])))]
        model = trainer.accelerator.unwrap_model(trainer.model)
        masks, scale = _measured(trainer, batch, parts)
        return run_checks(
            folder if trainer.accelerator.process_index == 0 else None,
            loss_function=loss_function(trainer),
            stated=_stated(trainer),
            masks={**masks, "finish": finish},
            model=model,
            accumulation={
                "backward": lambda batches: _backward(trainer, batches),
                "whole": _split(batch, size * len(few))[0],
                "parts": few,
                "n_tokens": [_trained(part).sum(dim=1).tolist() for part in few],
                "world_size": int(trainer.accelerator.num_processes),
                "any_rank": lambda own: _any_rank(trainer, own),
                "without": "top_entropy_quantile" if trainer.top_entropy_quantile < 1.0 else None,
                "scale": scale,
            },
            consistency={
                "rows": [ids for ids, _ in rows],
                "n_prompt": [n for _, n in rows],
                "temperature": float(trainer.temperature),
                "pad_id": int(tokenizer_of(trainer).pad_token_id),
            },
            nll=lambda: _nll(trainer, {k: _first(v, FITTED) for k, v in batch.items()}),
            config=settings_of(trainer),
            versions=surroundings()["versions"],
            loss_code=loss_code(trainer),
        )


def _any_rank(trainer: Any, own: bool) -> bool:
    """Whether it holds in any process: what all of them do next is the same."""
    import torch

    asked = torch.tensor([float(own)], device=trainer.accelerator.device)
    return bool(trainer.accelerator.gather(asked).any())


def loss_code(trainer: Any) -> str | None:
    """File that the trainer's class stands in; what it derives from is known by its version."""
    return inspect.getsourcefile(type(trainer))


def loss_function(trainer: Any) -> Any:
    """The trainer's loss as a function of log-probs alone: its model only hands them over."""
    import torch

    def loss(given: LossInput) -> Any:
        n_rows, width = given.logp_new.shape
        device = given.logp_new.device
        mask = given.loss_mask.long()
        inputs = {
            "prompt_ids": torch.ones(n_rows, 1, dtype=torch.long, device=device),
            "prompt_mask": torch.ones(n_rows, 1, dtype=torch.long, device=device),
            "completion_ids": torch.ones(n_rows, width, dtype=torch.long, device=device),
            "completion_mask": mask,
            "advantages": given.advantage,
            "num_items_in_batch": mask.sum(),
            "old_per_token_logps": given.logp_old,
        }
        if trainer.beta != 0.0:
            reference = given.logp_new.detach() if given.logp_ref is None else given.logp_ref
            inputs["ref_per_token_logps"] = reference
        entropy = torch.zeros_like(given.logp_new)

        def model(**_: Any) -> Any:
            return SimpleNamespace(log_probs=given.logp_new, entropy=entropy, aux_loss=None)

        return trainer._compute_loss(model, inputs)

    return loss


def _batch(trainer: Any) -> tuple[dict[str, Any], list[str]]:
    """One generation batch, scored, with the source of each token; and why each row ended.

    Sources are told by what was generated, not by masks: these are what is checked. Rows without
    an advantage get one of 1: nothing would flow back through them.
    """
    scored = Scored()

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def rewards(*args: Any, **more: Any) -> Any:
            scored.ids = args[3] if len(args) > 3 else more.get("completion_ids_list", ())
            return original(*args, **more)

        return rewards

    rows = next(iter(trainer.get_train_dataloader()))
    with replaced(trainer, "_calculate_rewards", around(trainer._calculate_rewards)):
        found: dict[str, Any] = trainer._generate_and_score_completions(rows)
    known = generated_ids(trainer, found, scored)
    found[SOURCE] = sources(trainer, found, known)
    found["advantages"] = _none_is_zero(found["advantages"])
    return found, finishes(trainer, known)


def _none_is_zero(advantages: Any) -> Any:
    import torch

    if advantages.dim() != 1:  # a token's own 0 may be what keeps it out of the loss
        return advantages
    return torch.where(advantages == 0, torch.ones_like(advantages), advantages)


def _measured(
    trainer: Any, batch: dict[str, Any], parts: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Arguments of the mask probe, and the scale of the loss where it can be measured."""
    found = measured(trainer, parts, functools.partial(_scaled, trainer))
    if found is None:
        return masks_stated(batch), None
    micros, masks, settings = found
    return masks_measured(micros, masks), scale_of(trainer, micros, masks, settings)


def _stated(trainer: Any) -> Stated:
    """What the trainer's settings say of its loss, as far as they say it plainly."""
    plain = trainer.loss_type in ("grpo", "bnpo", "dr_grpo", "dapo")
    token = trainer.importance_sampling_level == "token"
    return Stated(
        epsilon_low=float(trainer.epsilon_low) if plain and token else None,
        epsilon_high=float(trainer.epsilon_high) if plain and token else None,
        beta=float(trainer.beta) or None,
        kl="k3" if trainer.beta and not trainer.args.use_bias_correction_kl else None,
    )


def _split(batch: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """Micro-batches of so many rows."""
    n = len(batch["completion_ids"])
    return [
        {k: _rows(v, start, start + size, n) for k, v in batch.items()}
        for start in range(0, n, size)
    ]


def _rows(value: Any, start: int, stop: int, n: int) -> Any:
    whole = not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0 or len(value) != n
    return value if whole else value[start:stop]


def _first(value: Any, n: int) -> Any:
    whole = not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0
    return value if whole else value[:n]


def _trained(batch: dict[str, Any]) -> Any:
    tools = batch.get("tool_mask")
    made = batch["completion_mask"]
    return made if tools is None else made * tools


def _backward(trainer: Any, batches: Sequence[dict[str, Any]]) -> None:
    """Forward and backward of each batch with the scaling of training for so many."""
    with _scaled(trainer, len(batches)):
        for batch in batches:
            loss = trainer.compute_loss(trainer.model, dict(batch))
            loss.backward()


@contextlib.contextmanager
def _scaled(trainer: Any, n: int) -> Iterator[None]:
    """The trainer scales its loss for so many micro-batches.

    All tokens count: the threshold of `top_entropy_quantile` is one of each micro-batch by design,
    so that a split changes which tokens are chosen.
    """
    quantile = trainer.top_entropy_quantile
    before = trainer.current_gradient_accumulation_steps
    stated, per_generation = (
        trainer.args.gradient_accumulation_steps,
        trainer.args.steps_per_generation,
    )
    trainer.current_gradient_accumulation_steps = n
    trainer.args.steps_per_generation = n
    trainer.top_entropy_quantile = 1.0
    try:
        yield
    finally:
        trainer.current_gradient_accumulation_steps = before
        trainer.args.gradient_accumulation_steps = stated
        trainer.args.steps_per_generation = per_generation
        trainer.top_entropy_quantile = quantile


def _row(batch: dict[str, Any], i: int) -> tuple[list[int], int]:
    """Token ids of one row without padding, and how many of them are prompt."""
    import torch

    ids = torch.cat([batch["prompt_ids"][i], batch["completion_ids"][i]])
    prompt, made = ids[batch[SOURCE][i] == PROMPT], ids[batch[SOURCE][i] >= SAMPLED]
    return prompt.tolist() + made.tolist(), len(prompt)


def _nll(trainer: Any, batch: dict[str, Any]) -> Any:
    """Mean negative log-likelihood of what was sampled, through the trainer's own pass."""
    import torch

    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    width = batch["completion_ids"].shape[1]
    seen = (batch[SOURCE] != PADDING).long()
    logp = trainer._get_per_token_logps_and_entropies(trainer.model, ids, seen, width)[0]
    mask = batch[SOURCE][:, -width:] == SAMPLED
    return -(logp * mask).sum() / mask.sum().clamp(min=1)
