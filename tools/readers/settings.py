"""Settings of other frameworks under the names that the tools read, which are TRL's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from firstbad.tools.run import Config

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
_VERL = {
    "num_generations": _ROLLOUT + "n",
    "max_completion_length": "data.max_response_length",
    "max_prompt_length": "data.max_prompt_length",
    "max_grad_norm": _ACTOR + "grad_clip",
    "entropy_coef": _ACTOR + "entropy_coeff",
    "temperature": _ROLLOUT + "temperature",
    "top_p": _ROLLOUT + "top_p",
    "top_k": _ROLLOUT + "top_k",
    "loss_scale_factor": _ACTOR + "loss_scale_factor",
}
# Aggregation of the token losses, as TRL's loss of the same denominator. The other modes sum.
_VERL_LOSS = {"token-mean": "dapo", "seq-mean-token-mean": "grpo"}
_NEMO = {"beta": "loss_fn.reference_policy_kl_penalty"}


def with_common_names(config: Config) -> Config:
    """The config with what a verl or NeMo-RL config says added under the common names.

    Sources: verl 0.9.1, NeMo-RL 0.6. A setting that is not stated is not added, except where the
    framework's default is documented and has not changed.
    """
    if any(name.startswith("actor_rollout_ref.") for name in config.values):
        return replace(config, values={**_verl(config), **config.values})
    if any(name.startswith("loss_fn.") for name in config.values):
        return replace(config, values={**_nemo(config), **config.values})
    return config


def _nemo(config: Config) -> Mapping[str, object]:
    found: dict[str, object] = {
        to: config.values[key] for to, key in _NEMO.items() if key in config.values
    }
    by_token = config.flag("loss_fn.token_level_loss") is not False
    found["loss_type"] = "dapo" if by_token else "grpo"
    return found


def _verl(config: Config) -> Mapping[str, object]:
    values = config.values
    found: dict[str, object] = {to: values[key] for to, key in _VERL.items() if key in values}
    # Without `use_kl_loss` the loss holds no KL, whatever its coefficient says.
    in_loss = config.flag(_ACTOR + "use_kl_loss")
    found["beta"] = config.number(_ACTOR + "kl_loss_coef") if in_loss else 0.0
    found["loss_type"] = _verl_loss(config)
    weighed = config.text("algorithm.rollout_correction.rollout_is") is not None
    found["vllm_importance_sampling_correction"] = weighed
    divides = config.flag("algorithm.norm_adv_by_std_in_grpo")
    found["scale_rewards"] = "none" if divides is False else "group"
    engine = config.text(_ROLLOUT + "name")
    if engine is not None:
        found["use_vllm"] = engine != "hf"
    batch = config.number("data.train_batch_size")
    mini = config.number(_ACTOR + "ppo_mini_batch_size")
    if batch and mini:
        passes = config.number(_ACTOR + "ppo_epochs") or 1.0
        found["updates_per_batch"] = max(1.0, batch / mini) * passes
    return {name: value for name, value in found.items() if value is not None}


def _verl_loss(config: Config) -> str:
    """The aggregation under the name of TRL's loss of the same denominator, else verl's name.

    GSPO fixes the aggregation; another loss than the clipped one is known by its own name alone,
    or, where its sums are not a mean over tokens, by both.
    """
    mode = config.text(_ACTOR + "policy_loss.loss_mode") or "vanilla"
    aggregation = config.text(_ACTOR + "loss_agg_mode") or "token-mean"
    if mode not in ("vanilla", "gspo"):
        by_token = mode not in ("cispo", "gpg") or aggregation == "token-mean"
        return mode if by_token else f"{mode} {aggregation}"
    if mode == "gspo":
        aggregation = "seq-mean-token-mean"
    return _VERL_LOSS.get(aggregation, aggregation)
