"""Settings of a trainer as they are in force."""

from __future__ import annotations

from typing import Any

from firstbad_recorder.secrets import without_secrets


def settings_of(trainer: Any) -> dict[str, object]:
    """Settings as they are in force, without what may be a secret."""
    found = without_secrets(trainer.args.to_dict())
    model = trainer.accelerator.unwrap_model(trainer.model)
    found |= {
        "world_size": int(trainer.accelerator.num_processes),
        "model_dtype": str(next(model.parameters()).dtype).rpartition(".")[2],
        "trainer_class": type(trainer).__name__,
        "reward_funcs": list(trainer.reward_func_names),
        "eos_token_id": sorted(int(i) for i in trainer.eos_token_ids),
        "pad_token_id": trainer._tokenizer.pad_token_id,
    }
    return found
