"""Short TRL runs on a tiny random model, built on the spot."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MakeTrainer = Callable[..., Any]


@pytest.fixture
def make_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTrainer:
    """`make_trainer(kind=..., **config)`: a trainer of six steps that writes below `tmp_path`."""
    pytest.importorskip("trl")
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PrinterCallback, ProgressCallback
    from trl import GRPOConfig

    from firstbad.evals.trl_runs.make import BASE_CONFIG, quiet
    from firstbad.evals.trl_runs.model import make_model, make_tokenizer
    from firstbad.evals.trl_runs.task import make_rows
    from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer

    quiet()
    monkeypatch.chdir(tmp_path)

    def make(
        kind: type[Any] = LoggedGRPOTrainer,
        fault: dict[str, Any] | None = None,
        rewards: list[Any] | None = None,
        **config: Any,
    ) -> Any:
        def length(completions: list[Any], **_: Any) -> list[float]:
            return [len(c[0]["content"]) / 100 for c in completions]

        def digits(completions: list[Any], **_: Any) -> list[float]:
            return [float(sum(ch.isdigit() for ch in c[0]["content"]) % 2) for c in completions]

        settings = {
            **BASE_CONFIG,
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 12,
            "max_steps": 6,
            "reward_weights": None,
            "save_strategy": "no",
            "report_to": [],
            "log_completions": False,
            **config,
        }
        torch.manual_seed(0)
        make_model(5).save_pretrained(tmp_path / "model")  # the reference is loaded from there
        trainer = kind(
            model=AutoModelForCausalLM.from_pretrained(tmp_path / "model"),
            reward_funcs=rewards or [digits, length],
            args=GRPOConfig(**settings),
            train_dataset=Dataset.from_list(make_rows(random.Random(1), 200, 4, 6)),
            processing_class=make_tokenizer(),
            fault=fault or {},
        )
        for callback in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)
        return trainer

    return make
