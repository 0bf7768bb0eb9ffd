"""One line for TRL's GRPO trainer: `attach(trainer)` before `trainer.train()`.

Callbacks never see the batch, so methods of the trainer are wrapped: they do what they did, and
what passes through them is recorded. Nothing that fails here reaches the training.
"""

from firstbad_recorder.trl.attach import attach
from firstbad_recorder.trl.preflight import preflight

__all__ = ["attach", "preflight"]
