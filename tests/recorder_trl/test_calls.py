"""Calls of the wrapped methods: by keyword, with images, of other versions, after the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import torch

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer
from firstbad.tools.readers import open_run
from firstbad_recorder.trl import attach, passes, preflight
from firstbad_recorder.trl.measured import AS_STATED, MEASURED
from firstbad_recorder.trl.micro import Micro
from firstbad_recorder.trl.recording import Recording
from firstbad_recorder.trl.rows import Generation
from firstbad_recorder.trl.wrap import named
from recorder_trl.lines import rows_in

pytestmark = pytest.mark.filterwarnings("default")
MakeTrainer = Callable[..., Any]


class ByKeyword(LoggedGRPOTrainer):
    """Calls TRL's methods by the names of their parameters, and has own names for others."""

    def _calculate_rewards(self, inputs: Any, asked: Any, made: Any, ids: Any) -> Any:
        return super()._calculate_rewards(inputs, asked, made, ids)

    def _compute_loss(self, network: Any, batch: dict[str, Any]) -> Any:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attended = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        width = batch["completion_ids"].shape[1]
        with torch.no_grad():
            self._get_per_token_logps_and_entropies(
                model=network, input_ids=ids, attention_mask=attended, logits_to_keep=width
            )
        return super()._compute_loss(network, batch)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        return self._compute_loss(batch=inputs, network=model)

    def log(self, numbers: dict[str, float], start_time: float | None = None) -> None:
        super().log(numbers, start_time)

    def _clip_grad_norm(self, model: Any) -> Any:
        return self.accelerator.clip_grad_norm_(parameters=model.parameters(), max_norm=0.5)


def test_calls_by_keyword_are_recorded_as_well(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(ByKeyword, max_steps=2)
    recorder = attach(trainer, tmp_path / "record", baseline_every=1)
    trainer.train()
    trainer.log(numbers={"own": 1.0})
    assert recorder.dropped == 0
    run = open_run(f"rec:{tmp_path / 'record'}")
    assert run.captures.steps.tolist() == [1, 2]
    assert len(run.rollouts.batch(1)) == 16
    norms = run.flight.at(1).norms
    assert [n.clip_value for n in norms] == [0.5]


def test_a_preflight_measures_what_is_called_by_keyword(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    report = preflight(make_trainer(ByKeyword), tmp_path / "record").report()
    assert AS_STATED not in report
    assert MEASURED in report


def test_arguments_by_place_and_by_name() -> None:
    names = ("model", "inputs")

    def other(network: Any, batch: Any, extra: Any = None) -> None: ...

    def any_of_them(*args: Any, **more: Any) -> None: ...

    assert named(names, other, (1,), {"batch": 2, "extra": 3}) == {
        "model": 1,
        "inputs": 2,
        "extra": 3,
    }
    assert named(names, any_of_them, (1, 2), {}) == {"model": 1, "inputs": 2}
    assert named(names, any_of_them, (), {"inputs": 2, "model": 1}) == {"model": 1, "inputs": 2}


@pytest.mark.parametrize("pixels", [None, torch.ones(2, 3)])
def test_images_go_into_the_same_pass_again_and_no_row_is_passed_without_them(pixels: Any) -> None:
    calls: list[dict[str, Any]] = []

    def score(
        model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: Any, **more: Any
    ) -> Any:
        calls.append(more)
        return torch.zeros(len(input_ids), logits_to_keep, requires_grad=True), None, None

    losses: list[Exception] = []
    accelerator = SimpleNamespace(process_index=0, num_processes=1)
    model = SimpleNamespace()
    trainer: Any = SimpleNamespace(accelerator=accelerator, model=model, temperature=1.0)
    recording = Recording(trainer, SimpleNamespace(lost=losses.append))  # type: ignore[arg-type]
    micro = Micro({}, Generation(1, []), [0, 1], 0, 0)
    ids = torch.ones(2, 5).long()
    args, more = (model, ids, ids), {"logits_to_keep": 3, "pixel_values": pixels}
    recording.passed(micro, score(*args, **more), score, args, more)
    passes.recheck(micro, trainer, 8)
    assert calls[-1] == {"pixel_values": pixels}
    passes.layout(micro, trainer, 8)
    if pixels is not None:
        passes.varentropy(micro, trainer, 8)
    assert len(calls) == (2 if pixels is not None else 4)
    assert set(micro.checked) == ({"recheck"} if pixels is not None else {"recheck", "layout"})


def test_processes_make_as_many_passes_whatever_is_in_their_rows() -> None:
    calls: list[tuple[int, int]] = []

    def alone(ids: Any, attended: Any, width: int) -> Any:
        calls.append((ids.shape[1], width))
        return torch.full((1, width), -2.0), None

    attended = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    micro = Micro({}, Generation(1, []), [0, 1, 2], 0, 0)
    micro.passed = passes_of(torch.arange(15).reshape(3, 5), attended, 3, alone)
    passes.layout(micro, SimpleNamespace(), 8)
    assert calls == [(3, 2), (5, 1), (5, 1)]
    nan = float("nan")
    expected = torch.tensor([[-2.0, -2.0, nan], [nan] * 3, [nan] * 3])
    assert torch.equal(micro.checked["layout"].nan_to_num(0), expected.nan_to_num(0))


def passes_of(ids: Any, attended: Any, width: int, alone: Any) -> Any:
    from firstbad_recorder.trl.micro import Pass

    logp = torch.zeros(len(ids), width)
    return Pass(ids, attended, width, logp, None, lambda: None, alone=alone)


def test_the_variance_of_the_surprise_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(1, 8, 11, generator=torch.Generator().manual_seed(0))
    trainer = SimpleNamespace(temperature=0.7, model=lambda **_: SimpleNamespace(logits=logits))
    ids = torch.ones(1, 8).long()
    found = []
    for places in (512, 2):
        monkeypatch.setattr(passes, "PLACES", places)
        micro = Micro({}, Generation(1, []), [0], 0, 0)
        micro.passed = passes_of(ids, ids, 5, lambda *_: None)
        passes.varentropy(micro, trainer, 8)
        found.append(micro.checked["varentropy"])
    logp = torch.log_softmax(logits[0, 2:7] / 0.7, dim=-1)
    mean = (logp.exp() * logp).sum(-1, keepdim=True)
    expected = (logp.exp() * (logp - mean) ** 2).sum(-1)
    assert torch.equal(found[0], found[1])
    assert torch.allclose(found[0][0], expected, atol=1e-5)


def test_what_is_called_after_the_training_is_no_loss(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(max_steps=1, per_device_eval_batch_size=8)
    recorder = attach(trainer, tmp_path / "record")
    trainer.train()
    trainer.evaluate(eval_dataset=trainer.train_dataset.select(range(4)))
    assert recorder.dropped == 0
    about = json.loads((tmp_path / "record/run.json").read_text())
    assert about["dropped_by_reason"] == {}


def test_numbers_of_trl_are_recorded_once(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(max_steps=3)
    attach(trainer, tmp_path / "record")
    trainer.train()
    rows = rows_in(tmp_path / "record/metrics.jsonl")
    logged = trainer.state.log_history
    for name in ("rewards/digits/mean", "rewards/length/std", "frac_reward_zero_std", "num_tokens"):
        assert [r[name] for r in rows if name in r] == [r[name] for r in logged if name in r]
    own = [r for r in rows if "loss" in r]
    assert len(own) == 3
    assert not any({"reward", "kl", "completions/mean_length"} & r.keys() for r in rows)
    assert sum("step_time" in r for r in rows) == 3
    run = open_run(f"rec:{tmp_path / 'record'}")
    twice = [n.text for n in run.notes if n.code in ("duplicates", "same_signal")]
    assert all("debug/" in text for text in twice), twice  # what this trainer logs itself
    assert run.signals.get("reward_part/digits") is not None


class Older(LoggedGRPOTrainer):
    """Joins its numbers into a copy of what it is given, as TRL before 1.0."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(dict(logs), start_time)


def test_numbers_that_are_joined_into_a_copy_are_recorded(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(Older, max_steps=1)
    recorder = attach(trainer, tmp_path / "record")
    trainer.train()
    assert any("rewards/digits/mean" in r for r in rows_in(tmp_path / "record/metrics.jsonl"))
    assert recorder.dropped == 0


def test_a_trainer_that_lacks_what_is_recorded_trains_and_it_is_said_once(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(max_steps=3)
    del trainer.eos_token_ids
    # nothing of TRL's loss is called, as with a fused one
    trainer.compute_loss = lambda model, inputs, **_: type(trainer)._compute_loss(
        trainer, model, inputs
    )
    trainer.eos_token_ids, kept = None, trainer._tokenizer.eos_token_id
    trainer._generate = _with_ends(trainer, kept)
    recorder = attach(trainer, tmp_path / "record")
    trainer.train()
    about = json.loads((tmp_path / "record/run.json").read_text())
    assert about["config"]["eos_token_id"] == [kept]
    reasons = about["dropped_by_reason"]
    assert recorder.dropped == 1, reasons
    assert "a step without a micro-batch" in next(iter(reasons))
    rows = rows_in(tmp_path / "record/metrics.jsonl")
    assert [r["step"] for r in rows if "step_time" in r] == [1, 2, 3]
    assert [r["step"] for r in rows if "reward" in r] == [1, 2, 3]  # TRL's then


def _with_ends(trainer: Any, end: int) -> Any:
    original = trainer._generate

    def generate(*args: Any, **more: Any) -> Any:
        trainer.eos_token_ids = [end]
        try:
            return original(*args, **more)
        finally:
            trainer.eos_token_ids = None

    return generate


def test_a_batch_whose_rows_do_not_fit_their_scores_is_left_alone(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(max_steps=1)
    original = trainer._calculate_rewards
    trainer._calculate_rewards = None  # another version scores elsewhere
    recorder = attach(trainer, tmp_path / "record")
    trainer._calculate_rewards = original
    trainer.train()
    assert trainer.state.global_step == 1
    reasons = json.loads((tmp_path / "record/run.json").read_text())["dropped_by_reason"]
    assert any("this trainer has no `_calculate_rewards`" in reason for reason in reasons), reasons
    assert any("rows" in reason for reason in reasons)
    assert recorder.dropped == sum(reasons.values())
