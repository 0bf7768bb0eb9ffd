"""The losses of the installed TRL itself, called with everything but the loss replaced."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from firstbad_recorder.probes.loss_function import examine
from firstbad_recorder.probes.loss_input import LossFunction, LossInput

torch = pytest.importorskip("torch")
trainers = pytest.importorskip("trl.trainer.grpo_trainer")

MAX_LENGTH, N_TOKENS = 64, 37.0


def trl_loss(loss_type: str, **settings: Any) -> LossFunction:
    """TRL's `_compute_loss` as a function of what it computes with."""
    args = SimpleNamespace(
        delta=settings.get("delta"),
        use_bias_correction_kl=False,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        vespo_k_pos=2.0,
        vespo_lambda_pos=3.0,
        vespo_k_neg=3.0,
        vespo_lambda_neg=2.0,
        steps_per_generation=1,
    )
    trainer = SimpleNamespace(
        args=args,
        loss_type=loss_type,
        beta=settings.get("beta", 0.0),
        epsilon_low=0.2,
        epsilon_high=settings.get("epsilon_high", 0.28),
        importance_sampling_level=settings.get("level", "token"),
        max_completion_length=MAX_LENGTH,
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        _metrics={"train": defaultdict(list)},
        get_gamma_weights=trainers.GRPOTrainer.get_gamma_weights,
    )

    def loss(given: LossInput) -> Any:
        ids = torch.ones(given.logp_new.shape, dtype=torch.long)
        mask = given.loss_mask.long()
        trainer._get_per_token_logps_and_entropies = lambda *a, **k: (
            given.logp_new,
            torch.zeros_like(given.logp_new),
            None,
        )
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": torch.ones_like(ids[:, :1]),
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": given.advantage,
            "old_per_token_logps": given.logp_old,
            "ref_per_token_logps": given.logp_ref,
            "num_items_in_batch": torch.tensor(N_TOKENS),
        }
        return trainers.GRPOTrainer._compute_loss(trainer, trainer.model, inputs)

    return loss


@pytest.mark.parametrize(
    ("loss_type", "settings", "found_as", "reduction"),
    [
        ("grpo", {}, ["grpo"], "row_mean_of_token_mean"),
        ("bnpo", {}, ["bnpo", "dapo"], "token_mean"),
        ("dr_grpo", {}, ["dr_grpo"], "row_mean_of_token_sum"),
        ("dapo", {}, ["dapo"], "token_sum"),
        ("cispo", {"epsilon_high": 5.0}, ["cispo"], "token_sum"),
        ("sapo", {}, ["sapo"], "row_mean_of_token_mean"),
        ("luspo", {"level": "sequence"}, ["luspo"], "row_mean_of_token_sum"),
        ("vespo", {}, ["vespo"], "token_sum"),
    ],
)
def test_each_loss_type_of_trl_is_recognised(
    loss_type: str, settings: dict[str, Any], found_as: list[str], reduction: str
) -> None:
    found = examine(trl_loss(loss_type, **settings))
    assert found["loss_types"] == found_as
    assert found["reduction"]["name"] == reduction
    assert found["ratio"]["direction"] == "up"
    assert not found["numerics"]["exp_before_clamp"]
    if loss_type in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
        bounds = {(b["advantage"], b["side"]): b["ratio"] for b in found["ratio"]["bounds"]}
        assert bounds[1.0, "high"] == pytest.approx(1.28, rel=1e-4)
        assert bounds[-1.0, "low"] == pytest.approx(0.8, rel=1e-4)
        assert bounds[1.0, "low"] is None
        assert bounds[-1.0, "high"] is None


def test_constants_from_outside_are_measured() -> None:
    assert examine(trl_loss("dr_grpo"))["reduction"]["constant"] == pytest.approx(MAX_LENGTH)
    assert examine(trl_loss("dapo"))["reduction"]["constant"] == pytest.approx(N_TOKENS)


def test_trls_kl_is_k3_with_its_coefficient_and_its_delta_a_dual_clip() -> None:
    kl = examine(trl_loss("grpo", beta=0.04))["kl"]
    assert (kl["value"], kl["gradient"]) == ("k3", "k3")
    assert kl["coefficient"] == pytest.approx(0.04, rel=1e-3)
    bounds = examine(trl_loss("grpo", delta=4.0))["ratio"]["bounds"]
    dual = {(b["advantage"], b["side"]): b["ratio"] for b in bounds}
    assert dual[-1.0, "high"] == pytest.approx(4.0, rel=1e-4)
