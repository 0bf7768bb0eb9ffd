"""A preflight of trainers that train the wrong tokens, or too strongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer
from firstbad_recorder.preflight import Preflight
from firstbad_recorder.trl import preflight
from firstbad_recorder.trl.measured import finishes, generated_ids
from firstbad_recorder.trl.rows import Scored

# The libraries of training warn of their own doings.
pytestmark = pytest.mark.filterwarnings("default")
MakeTrainer = Callable[..., Any]


def checked(trainer: Any, tmp_path: Path) -> tuple[Preflight, dict[str, Any]]:
    made = preflight(trainer, tmp_path / "record")
    return made, {check.name: check for check in made.checks}


class AllOnes(LoggedGRPOTrainer):
    """A mask that holds padding."""

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.n_padding = int((batch["completion_mask"] == 0).sum())
        batch["completion_mask"] = batch["completion_mask"] * 0 + 1
        return batch


class OnesInTheLoss(LoggedGRPOTrainer):
    """The same, by the loss itself."""

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        ones = inputs["completion_mask"] * 0 + 1
        return super()._loss_of(model, {**inputs, "completion_mask": ones})


class NoStopToken(LoggedGRPOTrainer):
    """A mask that leaves out each row's last token."""

    def _finish_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        mask = batch["completion_mask"]
        left = mask.cumsum(1) < mask.sum(1, keepdim=True)
        batch["completion_mask"] = mask * left
        return batch


class TwoOfThePrompt(LoggedGRPOTrainer):
    """A loss that takes the last two tokens of the prompt for tokens of the completion."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        import torch

        moved = dict(inputs)
        for kind in ("ids", "mask"):
            prompt, made = inputs[f"prompt_{kind}"], inputs[f"completion_{kind}"]
            moved[f"completion_{kind}"] = torch.cat([prompt[:, -2:], made], dim=1)
            moved[f"prompt_{kind}"] = prompt[:, :-2]
        return super()._compute_loss(model, moved)


@pytest.mark.parametrize("kind", [AllOnes, OnesInTheLoss])
def test_trained_padding_fails_wherever_the_mask_is_changed(
    make_trainer: MakeTrainer, tmp_path: Path, kind: type[Any]
) -> None:
    made, checks = checked(make_trainer(kind), tmp_path)
    assert "mask_construction" in made.failed
    figures = checks["mask_construction"].measured
    assert figures["n_trained_padding"] > 0
    assert figures["n_trained_prompt"] == figures["n_sampled_untrained"] == 0
    assert "accumulation" not in made.failed


def test_all_trained_padding_is_counted(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(AllOnes)
    _, checks = checked(trainer, tmp_path)
    assert checks["mask_construction"].measured["n_trained_padding"] == trainer.n_padding


def test_a_stop_token_that_is_not_trained_fails(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    made, checks = checked(make_trainer(NoStopToken), tmp_path)
    assert made.failed == ["mask_construction"]
    figures = checks["mask_construction"].measured
    # 16 rows; those that are cut at the longest length have no stop token.
    assert 0 < figures["n_last_untrained"] <= figures["n_sampled_untrained"] == 16


def test_prompt_tokens_that_only_the_loss_trains_fail_and_what_breaks_is_counted(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    made, checks = checked(make_trainer(TwoOfThePrompt, beta=0.0), tmp_path)
    assert made.failed == ["mask_construction"]
    assert checks["mask_construction"].measured["n_trained_prompt"] == 2 * 16
    assert made.broken == ["loss_numerics", "loss_definition"]
    assert "0 not run, 2 could not be run in" in made.report().splitlines()[-1]


class TimesSteps(LoggedGRPOTrainer):
    """A factor that is the same whatever the number of micro-batches is."""

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
        return super()._loss_of(model, inputs) * self.args.gradient_accumulation_steps


class Third(LoggedGRPOTrainer):
    """A factor outside of the loss itself."""

    def compute_loss(self, *args: Any, **more: Any) -> Any:
        return super().compute_loss(*args, **more) / 3


LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_constant_factor_is_held_against_the_stated_loss(
    make_trainer: MakeTrainer, tmp_path: Path, loss_type: str
) -> None:
    how = {"loss_type": loss_type, "epsilon_high": 5.0 if loss_type == "cispo" else 0.2}
    sound, checks = checked(make_trainer(**how), tmp_path)
    assert "accumulation" not in sound.failed
    assert checks["accumulation"].measured["scale"] == pytest.approx(1.0, rel=1e-3)
    made, checks = checked(make_trainer(TimesSteps, **how), tmp_path)
    assert "accumulation" in made.failed
    assert checks["accumulation"].measured["scale"] == pytest.approx(2.0, rel=1e-3)
    said = f"2 times the gradient of the stated {loss_type} (must be 1); looks like: number of acc"
    assert said in checks["accumulation"].text


def test_a_factor_that_is_no_number_of_steps_is_told(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    made, checks = checked(make_trainer(Third), tmp_path)
    assert made.failed == ["accumulation"]
    assert "0.3333 times the gradient of the stated dapo (must be 1)" in checks["accumulation"].text


def test_a_batch_without_advantages_is_measured_all_the_same(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    def nothing(completions: list[Any], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    made, _ = checked(make_trainer(rewards=[nothing]), tmp_path)
    assert made.failed == made.broken == []
    made, checks = checked(make_trainer(TwoOfThePrompt, rewards=[nothing], beta=0.0), tmp_path)
    assert checks["mask_construction"].measured["n_trained_prompt"] == 2 * 16


@pytest.mark.parametrize(
    "how",
    [
        {"mask_truncated_completions": True, "max_completion_length": 9},
        {"beta": 0.04, "loss_type": "grpo"},
        {"importance_sampling_level": "sequence", "loss_type": "grpo"},
        {"steps_per_generation": 4},
        {"num_iterations": 2},
        {"off_policy_mask_threshold": 0.5},
    ],
)
def test_sound_settings_pass(
    make_trainer: MakeTrainer, tmp_path: Path, how: dict[str, Any]
) -> None:
    made, checks = checked(make_trainer(**how), tmp_path)
    assert made.failed == made.broken == []
    assert checks["accumulation"].measured["scale"] == pytest.approx(1.0, rel=1e-3)


def test_without_the_ids_that_were_generated_the_first_stop_token_ends_a_row() -> None:
    import torch

    trainer = SimpleNamespace(eos_token_ids=[1, 9], _tokenizer=SimpleNamespace(pad_token_id=0))
    ids = torch.tensor([[5, 1, 0, 0], [5, 6, 7, 8], [5, 6, 0, 0], [5, 9, 5, 5]])
    found = generated_ids(trainer, {"completion_ids": ids}, Scored())
    assert found.ids == [[5, 1], [5, 6, 7, 8], [5, 6], [5, 9]]
    assert finishes(trainer, found) == ["stop", "length", "length", "stop"]
    known = Scored(ids=[[5, 1, 5]] * 4)
    assert generated_ids(trainer, {"completion_ids": ids}, known) is known


class NoLogProbs(LoggedGRPOTrainer):
    """A loss of its own that asks for no log-probs."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        import torch

        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        return model(input_ids=ids).logits.float().square().mean()


def test_a_loss_that_shows_no_log_probs_is_checked_by_its_stated_mask(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    _, checks = checked(make_trainer(NoLogProbs), tmp_path)
    found = checks["mask_construction"]
    assert (found.outcome, found.measured["n_trained_padding"]) == ("pass", 0)
    assert "as the mask says: no gradient could be measured" in found.text
    assert "scale" not in checks["accumulation"].measured
