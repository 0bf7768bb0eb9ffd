"""One of two processes that train together; run by `test_ranks.py`.

Arguments: what is done, and the folder that everything is written to.
"""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
SECONDS = 300
"""After which a hang ends the process with its traceback."""


def make(kind: type[Any], folder: Path, **config: Any) -> Any:
    """A trainer of two processes on a tiny random model."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PrinterCallback
    from trl import GRPOConfig

    from firstbad.evals.trl_runs.make import BASE_CONFIG, quiet
    from firstbad.evals.trl_runs.model import make_model, make_tokenizer
    from firstbad.evals.trl_runs.task import make_rows

    quiet()
    own = folder / f"own{os.environ['RANK']}"
    own.mkdir(parents=True)
    os.chdir(own)

    def digits(completions: list[Any], **_: Any) -> list[float]:
        return [float(sum(ch.isdigit() for ch in c[0]["content"]) % 2) for c in completions]

    settings = {
        **BASE_CONFIG, "output_dir": str(own), "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4, "num_generations": 4, "max_completion_length": 8,
        "max_steps": 2, "reward_weights": None, "save_strategy": "no", "report_to": [],
        "log_completions": False, **config,
    }  # fmt: skip
    torch.manual_seed(0)
    make_model(5).save_pretrained(own / "model")
    trainer = kind(
        model=AutoModelForCausalLM.from_pretrained(own / "model"),
        reward_funcs=[digits],
        args=GRPOConfig(**settings),
        train_dataset=Dataset.from_list(make_rows(random.Random(1), 200, 4, 6)),
        processing_class=make_tokenizer(),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def replay(folder: Path) -> None:
    """Advantages of some micro-batches of one process are not finite in the second step."""
    from trl import GRPOTrainer

    from firstbad_recorder.trl import attach

    class Spoiled(GRPOTrainer):  # type: ignore[misc]
        def _prepare_inputs(self, batch: Any) -> Any:
            inputs = super()._prepare_inputs(batch)
            if self.accelerator.process_index and self.state.global_step and self._step % 2 == 0:
                inputs = {**inputs, "advantages": inputs["advantages"] * float("nan")}
            return inputs

    trainer = make(Spoiled, folder)
    recorder = attach(trainer, folder / "record", baseline_every=1)
    trainer.train()
    assert trainer.state.global_step == 2
    assert recorder.dropped == 0


def accumulation(folder: Path) -> None:
    """The gradients differ in one process only, as far as each can tell."""
    import trl

    from firstbad_recorder.probes import accumulation as probe
    from firstbad_recorder.trl import preflight

    trainer = make(trl.GRPOTrainer, folder, loss_type="bnpo")
    own = bool(trainer.accelerator.process_index)
    probe.differs = lambda found: own
    found = preflight(trainer, folder / "record")
    check = next(c for c in found.checks if c.name == "accumulation")
    assert check.outcome == ("fail" if own else "pass")
    assert ("even" in check.measured) is own


if __name__ == "__main__":
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    {"replay": replay, "accumulation": accumulation}[sys.argv[1]](Path(sys.argv[2]))
