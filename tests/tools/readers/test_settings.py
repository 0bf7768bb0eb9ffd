"""Settings of a verl or NeMo-RL run under the names that the tools read."""

from __future__ import annotations

from typing import Any

import pytest

from firstbad.tools.readers.settings import with_common_names
from firstbad.tools.run import Config

VERL: dict[str, Any] = {
    "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.02,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.grad_clip": 1.0,
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.rollout.name": "vllm",
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 128,
    "data.max_response_length": 40,
}


def read(**changed: Any) -> Config:
    values = {**VERL, **{k.replace("__", "."): v for k, v in changed.items()}}
    return with_common_names(Config({k: v for k, v in values.items() if v is not None}))


def test_names() -> None:
    config = read()
    assert config.number("num_generations") == 8
    assert config.number("beta") == 0.02
    assert config.text("loss_type") == "dapo"
    assert config.text("scale_rewards") == "group"
    assert config.number("max_completion_length") == 40
    assert config.number("max_grad_norm") == 1.0
    assert config.flag("use_vllm") is True
    assert config.number("updates_per_batch") == 2
    assert config.number("actor_rollout_ref.rollout.n") == 8, "its own names stay"


def test_a_coefficient_without_the_switch_is_no_kl_in_the_loss() -> None:
    assert read(actor_rollout_ref__actor__use_kl_loss=False).number("beta") == 0
    assert read(actor_rollout_ref__actor__use_kl_loss=None).number("beta") == 0
    unstated = read(actor_rollout_ref__actor__kl_loss_coef=None)
    assert "beta" not in unstated.values, "0.001 was not always the default"


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("token-mean", "dapo"), ("seq-mean-token-mean", "grpo"), ("token-sum", "token-sum")],
)
def test_an_aggregation_that_trl_lacks_keeps_its_name(mode: str, kind: str) -> None:
    assert read(actor_rollout_ref__actor__loss_agg_mode=mode).text("loss_type") == kind


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (None, "token-sum"),
        ("vanilla", "token-sum"),
        ("gspo", "grpo"),
        ("clip_cov", "clip_cov"),
        ("cispo", "cispo token-sum"),
    ],
)
def test_a_loss_that_is_not_the_clipped_one(mode: str | None, kind: str) -> None:
    config = read(
        actor_rollout_ref__actor__policy_loss__loss_mode=mode,
        actor_rollout_ref__actor__loss_agg_mode="token-sum",
    )
    assert config.text("loss_type") == kind


@pytest.mark.parametrize("mode", ["cispo", "gpg"])
def test_a_loss_of_log_probs_is_a_token_mean_as_a_rule(mode: str) -> None:
    config = read(
        actor_rollout_ref__actor__policy_loss__loss_mode=mode,
        actor_rollout_ref__actor__loss_agg_mode=None,
    )
    assert config.text("loss_type") == mode


@pytest.mark.parametrize(("weights", "corrected"), [(None, False), ("token", True)])
def test_importance_weights_are_in_the_loss_where_they_are_asked_for(
    weights: str | None, corrected: bool
) -> None:
    config = with_common_names(Config({**VERL, "algorithm.rollout_correction.rollout_is": weights}))
    assert config.flag("vllm_importance_sampling_correction") is corrected


@pytest.mark.parametrize(("by_token", "kind"), [(None, "dapo"), (True, "dapo"), (False, "grpo")])
def test_nemo_rl(by_token: bool | None, kind: str) -> None:
    values = {"loss_fn.reference_policy_kl_penalty": 0.01}
    if by_token is not None:
        values["loss_fn.token_level_loss"] = by_token
    config = with_common_names(Config(values))
    assert config.text("loss_type") == kind
    assert config.number("beta") == 0.01
    assert config.of_trainer


def test_updates_need_both_sizes() -> None:
    assert read(actor_rollout_ref__actor__ppo_epochs=3).number("updates_per_batch") == 6
    unstated = read(data__train_batch_size=None)
    assert "updates_per_batch" not in unstated.values


def test_other_configs_are_left_alone() -> None:
    config = Config({"beta": 0.1, "data.train_batch_size": 8})
    assert with_common_names(config) is config
