"""The synthetic trainer with checkpoints: weights, optimizer, schedule and counters, as a trainer
leaves them in `checkpoint-<step>` folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from firstbad_recorder import Recorder
from synthetic.policy import Array
from synthetic.torch_files import adam_state, save_torch, schedule_state
from synthetic.trainer import Trainer


class Saving(Trainer):
    """A sound trainer that saves every 20 steps and is resumed once, with all of its states."""

    saves = (20, 40, 60)
    resumed_at: int | None = 31
    """First step after the resume."""

    def __init__(self, **settings: Any) -> None:
        """Settings by name."""
        super().__init__(**settings)
        self.planned = 0
        """Steps that the schedule has counted."""

    def config(self) -> dict[str, object]:
        return {**super().config(), "optim": "adamw_torch"}

    def run(self, folder: Path) -> Path:
        self.folder = folder
        return super().run(folder)

    def update(self, grad: Array) -> Array:
        if self.step == self.resumed_at:
            self.resume()
        change = super().update(grad)
        self.planned += 1
        return change

    def resume(self) -> None:
        """Load the states; here they are still as they were saved."""

    def saved_moments(self) -> tuple[Any, Any]:
        """First and second moments as they are written."""
        return self.moments[0].astype(np.float32), self.moments[1].astype(np.float32)

    def saved_counts(self) -> tuple[int, int]:
        """Steps of optimizer and schedule as they are written."""
        return self.count, self.planned

    def extra(self, recorder: Recorder) -> None:
        if self.step + 1 == self.resumed_at:
            recorder.event("resume", self.step + 1, f"resumed from checkpoint-{self.step}")
        if self.step in self.saves:
            self.save(self.folder / f"checkpoint-{self.step}")

    def save(self, folder: Path) -> None:
        """Write one checkpoint."""
        folder.mkdir()
        (folder / "trainer_state.json").write_text(
            json.dumps({"global_step": self.step, "log_history": []}), encoding="utf-8"
        )
        counted, planned = self.saved_counts()
        save_torch(folder / "optimizer.pt", self.saved_state(counted))
        schedule = schedule_state(planned, rate=self.rate(), base=self.s.rate)
        save_torch(folder / "scheduler.pt", schedule)
        header: dict[str, object] = {}
        data = b""
        for name, rows in self.parts().items():
            weights = np.ascontiguousarray(self.table[rows], "<f4")
            ends = [len(data), len(data) + weights.nbytes]
            header[name] = {"dtype": "F32", "shape": list(weights.shape), "data_offsets": ends}
            data += weights.tobytes()
        about = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(len(about).to_bytes(8, "little") + about + data)

    def parts(self) -> dict[str, slice]:
        """Rows of the table that each stored parameter holds."""
        return {"model.table": slice(None)}

    def saved_state(self, counted: int) -> dict[str, Any]:
        """The optimizer's state as it is written, a parameter for each part."""
        first, second = self.saved_moments()
        pairs = [(first[rows], second[rows]) for rows in self.parts().values()]
        return adam_state(*pairs, step=counted, rate=self.rate())
