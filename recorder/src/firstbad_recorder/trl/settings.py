"""Settings of a trainer as they are in force, whichever version of TRL it is from."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from firstbad_recorder.secrets import without_secrets

_MOST_TOKENIZER_BYTES = 32 * 2**20
_FURTHER: dict[str, Callable[[Any], object]] = {
    "world_size": lambda trainer: int(trainer.accelerator.num_processes),
    "model_dtype": lambda trainer: _dtype(trainer),
    "trainer_class": lambda trainer: type(trainer).__name__,
    "reward_funcs": lambda trainer: list(trainer.reward_func_names),
    "eos_token_id": lambda trainer: sorted(ends_of(trainer)),
    "pad_token_id": lambda trainer: tokenizer_of(trainer).pad_token_id,
}


def settings_of(trainer: Any) -> dict[str, object]:
    """Settings as they are in force, without what may be a secret."""
    found: dict[str, object] = without_secrets(trainer.args.to_dict())
    for name, asked in _FURTHER.items():
        with suppress(Exception):  # this version has no such thing: it is left out
            found[name] = asked(trainer)
    return found


def tokenizer_of(trainer: Any) -> Any:
    """The tokenizer, also where the trainer has a processor of several kinds of input."""
    given = getattr(trainer, "processing_class", None)
    return getattr(trainer, "_tokenizer", None) or getattr(given, "tokenizer", given)


def ends_of(trainer: Any) -> set[int]:
    """Tokens that end a completion."""
    found = getattr(trainer, "eos_token_ids", None)
    if found is None:
        found = getattr(tokenizer_of(trainer), "eos_token_id", None)
    several = found if isinstance(found, (list, tuple, set)) else [found]
    return {int(end) for end in several if end is not None}


def device_of(trainer: Any) -> str:
    """What computes, in words."""
    import torch

    device = trainer.accelerator.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def save_tokenizer(trainer: Any, folder: Path) -> None:
    """The tokenizer's own file, so that tokens can be shown as text."""
    text = tokenizer_of(trainer).backend_tokenizer.to_str()
    if len(text) <= _MOST_TOKENIZER_BYTES and json.loads(text):
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")


def _dtype(trainer: Any) -> str:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return str(next(model.parameters()).dtype).rpartition(".")[2]
