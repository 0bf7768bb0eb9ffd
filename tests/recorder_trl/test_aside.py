"""The trainer's own code run beside its training leaves nothing behind and waits for nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import torch

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer
from firstbad_recorder.trl import attach, preflight
from firstbad_recorder.trl.aside import alone, as_before, needs_all

pytestmark = pytest.mark.filterwarnings("default")
MakeTrainer = Callable[..., Any]
ENTROPY = {"use_adaptive_entropy": True, "entropy_target": 5.0}


def test_a_preflight_leaves_the_entropy_controller_as_it_was(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(**ENTROPY)
    names = ("entropy_coef", "_last_world_entropy", "_entropy_window_stats")
    before = [getattr(trainer, name) for name in names]
    preflight(trainer, tmp_path / "record")
    assert [getattr(trainer, name) for name in names] == before


class Spoiled(LoggedGRPOTrainer):
    """Advantages of the second step are not finite."""

    def _prepare_inputs(self, batch: Any) -> Any:
        inputs = super()._prepare_inputs(batch)
        if self.state.global_step == 1:
            inputs = {**inputs, "advantages": inputs["advantages"] * float("nan")}
        return inputs


def test_a_replay_leaves_the_entropy_controller_as_it_was(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    found = []
    for recorded in (False, True):
        trainer = make_trainer(Spoiled, max_steps=2, **ENTROPY)
        if recorded:
            attach(trainer, tmp_path / "record")
        trainer.train()
        found.append(trainer.entropy_coef)
    assert "first value that is not finite" in (tmp_path / "record/events.jsonl").read_text()
    assert found[0] == found[1]


def test_buffered_batches_are_not_copied(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    buffered = trainer._buffered_inputs = [{"prompt_ids": torch.ones(1)}]
    with as_before(trainer):
        trainer._buffered_inputs = None
        trainer._metrics["train"]["loss"].append(1.0)
    assert trainer._buffered_inputs is buffered
    assert not trainer._metrics["train"]["loss"]


def test_no_process_waits_for_another_one_meanwhile() -> None:
    def waits(*_: Any, **__: Any) -> Any:
        raise AssertionError("waits for ever")

    names = ("reduce", "gather", "gather_for_metrics", "pad_across_processes")
    accelerator = SimpleNamespace(num_processes=2, **dict.fromkeys(names, waits))
    before = torch.distributed.all_reduce
    value = torch.ones(2)
    with alone(SimpleNamespace(accelerator=accelerator)):
        assert all(getattr(accelerator, name)(value, reduction="sum") is value for name in names)
        with pytest.raises(RuntimeError, match="`all_reduce` while one process computes alone"):
            torch.distributed.all_reduce(value)
    assert torch.distributed.all_reduce is before
    assert accelerator.gather is waits


@pytest.mark.parametrize(
    ("processes", "kind", "expected"),
    [(1, "FSDP", False), (2, "MULTI_GPU", False), (2, "FSDP", True), (2, "DEEPSPEED", True)],
)
def test_which_models_need_all_processes(processes: int, kind: str, expected: bool) -> None:
    accelerator = SimpleNamespace(num_processes=processes, distributed_type=kind)
    trainer = SimpleNamespace(accelerator=accelerator, model=torch.nn.Linear(1, 1))
    assert needs_all(trainer) is expected
