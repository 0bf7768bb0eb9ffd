"""Settings of a trainer as they are in force."""

from __future__ import annotations

import re
from typing import Any

_SECRET = re.compile(r"token$|secret|password|api_?key|credential", re.I)


def settings_of(trainer: Any) -> dict[str, object]:
    """Settings as they are in force, without what may be a secret."""
    found = {
        key: value
        for key, value in trainer.args.to_dict().items()
        if not _SECRET.search(key) or value is None
    }
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
