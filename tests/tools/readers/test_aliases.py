"""The table of names: complete, without contradictions, and never guessing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from firstbad.tools.readers.aliases import (
    UNKNOWN,
    alias_of,
    canonical_names,
    framework_of,
    sums_of,
    unit_of,
)
from firstbad.tools.readers.log import Log
from firstbad.tools.readers.naming import given_otherwise, name_signals

WANTED = (
    "reward_mean", "reward_std", "reward_part/<f>", "reward_part_std/<f>",
    "frac_zero_variance_groups", "completion_length_mean", "completion_length_max",
    "completion_length_min", "completion_length_terminated_mean", "truncation_rate", "kl_ref",
    "kl_old", "entropy", "clip_frac_high", "clip_frac_low", "clip_frac_total", "ratio_max",
    "ratio_min", "ratio_mean", "grad_norm_preclip", "learning_rate", "loss",
    "policy_loss", "logprob_diff_sequence", "engine_kl", "prob_diff_mean",
    "logprob_diff_mean", "logprob_diff_max", "is_ratio_mean", "is_ratio_max", "is_ratio_min",
    "step_time", "gpu_util", "throughput", "phase_seconds/<f>", "staleness",
    "num_tokens", "trained_tokens_mean",
    "advantage_abs_mean", "epoch", "entropy_coef", "tool_call_rate", "tool_failure_rate",
    "value_loss", "value_mean", "value_explained_variance", "return_mean", "return_max",
    "return_min", "ess_ratio", "surprise_mean",
)  # fmt: skip


def name_of(key: str, framework: str) -> str | None:
    alias = alias_of(key, framework)
    return alias.name if alias else None


def test_every_canonical_name_has_a_unit_and_can_be_reached() -> None:
    assert set(canonical_names()) == set(WANTED)
    for name in WANTED:
        plain = name.replace("<f>", "f")
        assert name_of(plain, UNKNOWN) == plain
    assert unit_of("reward_part/exact") == "reward"
    assert unit_of("eval/entropy") == "nats"


@pytest.mark.parametrize(
    ("framework", "key", "name"),
    [
        ("trl", "reward", "reward_mean"),
        ("trl", "train/reward", "reward_mean"),
        ("trl", "eval_reward", "eval/reward_mean"),
        ("trl", "eval/reward", "eval/reward_mean"),
        ("trl", "eval_rewards/exact/mean", "eval/reward_part/exact"),
        ("trl", "rewards/a/b/mean", "reward_part/a/b"),
        ("trl", "rewards/exact/std", "reward_part_std/exact"),
        ("trl", "rewards/exact", "reward_part/exact"),
        ("trl", "clip_ratio/high_mean", "clip_frac_high"),
        ("trl", "clip_ratio/high_max", None),
        ("trl", "sampling/importance_sampling_ratio/max", "is_ratio_max"),
        ("trl", "debug/ratio_max", "ratio_max"),
        ("trl", "debug/ratio_mean", "ratio_mean"),
        ("trl", "debug/ratio_min", "ratio_min"),
        ("trl", "debug/trained_tokens", "trained_tokens_mean"),
        ("trl", "my/own/adv_abs_mean", "advantage_abs_mean"),
        ("trl", "ratio_max", "ratio_max"),
        ("trl", "custom/thing", None),
        ("trl", "probs_ratio_max", None),
        ("trl-async", "kl", None),
        ("trl-async", "sample/staleness_mean", "staleness"),
        ("ms-swift", "entropy/mean", "entropy"),
        ("ms-swift", "rollout_correction/ess", "ess_ratio"),
        ("verl", "rollout_corr/rollout_is_eff_sample_size", "ess_ratio"),
        ("verl", "critic/score/mean", "reward_mean"),
        ("verl", "critic/rewards/mean", None),
        ("verl", "critic/vf_explained_var", "value_explained_variance"),
        ("verl", "critic/vf_loss", "value_loss"),
        ("verl", "critic/values/mean", "value_mean"),
        ("verl", "critic/returns/mean", "return_mean"),
        ("openrlhf", "critic_loss", "value_loss"),
        ("openrlhf", "values", "value_mean"),
        ("trl", "values", None),
        ("verl", "actor/ppo_kl", "kl_old"),
        ("verl", "actor/pg_clipfrac", "clip_frac_total"),
        ("verl", "actor/pg_clipfrac_lower", None),
        ("verl", "training/rollout_probs_diff_mean", "prob_diff_mean"),
        ("verl", "rollout_corr/k3_kl", "engine_kl"),
        ("verl", "rollout_corr/kl", None),
        ("verl", "actor/pg_loss", "policy_loss"),
        ("trl", "policy_loss", None),
        ("openrlhf", "train/rollout/reward_mean", "reward_mean"),
        ("openrlhf", "train/kl", "kl_ref"),
        ("openrlhf", "train/reward", None),
        ("nemo-rl", "train/reward", "reward_mean"),
        ("nemo-rl", "train/probs_ratio_max", "ratio_max"),
        ("slime", "rollout/raw_reward", "reward_mean"),
        ("slime", "rollout/rewards", None),
        ("slime", "train/kl_loss", "kl_ref"),
        ("skyrl", "policy/grad_norm", "grad_norm_preclip"),
        ("skyrl", "ray/gpu.util.avg", "gpu_util"),
        ("roll", "actor/ratio_max", "ratio_max"),
        ("prime-rl", "optim/lr", "learning_rate"),
        (UNKNOWN, "actor/ppo_kl", "kl_old"),
        (UNKNOWN, "rewards/exact/mean", "reward_part/exact"),
        (UNKNOWN, "something", None),
    ],
)
def test_names(framework: str, key: str, name: str | None) -> None:
    assert name_of(key, framework) == name


@pytest.mark.parametrize(
    ("keys", "framework"),
    [
        (["reward", "frac_reward_zero_std"], "trl"),
        (["train/completions/clipped_ratio"], "trl"),
        (["frac_reward_zero_std", "completions/clipped_ratio", "memory(GiB)"], "ms-swift"),
        (["completions/clipped_ratio", "sample/staleness_mean"], "trl-async"),
        (["critic/score/mean", "actor/pg_clipfrac_lower"], "verl"),
        (["critic/score/mean", "critic/all_correct_groups_ratio"], "roll"),
        (["train/group_reward_std"], "openrlhf"),
        (["train/gen_kl_error"], "nemo-rl"),
        (["rollout/raw_reward"], "slime"),
        (["mismatch_kl/all/mean"], "prime-rl"),
        (["reward/avg_raw_reward"], "skyrl"),
        (["reward", "loss"], UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_frameworks(keys: list[str], framework: str) -> None:
    assert framework_of(keys) == framework


def log_of(**values: float) -> Log:
    log = Log()
    log.add(1, {key.replace("__", "/"): value for key, value in values.items()})
    return log


def test_values_are_converted() -> None:
    log = log_of(token_mult_prob_error=math.e, reward=0.5)
    signals, notes = name_signals(log, "nemo-rl")
    assert signals.known["logprob_diff_mean"].values.tolist() == pytest.approx([1.0])
    assert any("upper bound" in note.text for note in notes)


def test_the_logarithm_of_nothing_is_counted() -> None:
    signals, _ = name_signals(log_of(token_mult_prob_error=0.0), "nemo-rl")
    assert signals.known["logprob_diff_mean"].nonfinite_steps == (1,)


def test_next_steps_rate_is_noted() -> None:
    log = Log()
    log.add(1, {"actor/lr": 1e-6})
    _, notes = name_signals(log, "verl")
    assert any("next step" in note.text for note in notes)


def test_sums() -> None:
    log = Log()
    log.add(1, {"critic/all_correct_groups_ratio": 0.25, "critic/all_incorrect_groups_ratio": 0.5})
    log.add(2, {"critic/all_correct_groups_ratio": 0.25})
    signals, _ = name_signals(log, "roll")
    found = signals.known["frac_zero_variance_groups"]
    assert (found.steps.tolist(), found.values.tolist()) == ([1], [0.75])
    assert found.unit == "fraction"
    assert sums_of("trl") == {}


def test_two_keys_of_one_name() -> None:
    log = Log()
    log.add(1, {"completion_length": 3.0, "completions/mean_length": 4.0})
    signals, notes = name_signals(log, "trl")
    assert signals.known["completion_length_mean"].source_key == "completions/mean_length"
    assert set(signals.unknown) == {"completion_length"}
    assert [note.code for note in notes] == ["same_signal"]


def test_a_key_that_a_better_one_gives_is_known_and_needs_no_note_where_they_agree() -> None:
    log = Log()
    for step, value in ((1, 0.123456), (2, 0.5)):
        log.add(step, {"reward": round(value, 4), "reward_mean": value, "mine": 1.0})
    signals, notes = name_signals(log, "trl")
    assert signals.known["reward_mean"].source_key == "reward"
    assert notes == ()
    assert given_otherwise(signals, "trl") == {"reward_mean"}


def test_signals_are_sorted_unique_and_finite() -> None:
    log = Log()
    for step, value in ((3, 1.0), (1, 2.0), (3, 5.0), (2, math.nan), (4, math.inf)):
        log.add(step, {"reward": value})
    signals, notes = name_signals(log, "trl")
    reward = signals.known["reward_mean"]
    assert reward.steps.tolist() == [1, 3]
    assert reward.values.tolist() == [2.0, 5.0]
    assert reward.nonfinite_steps == (2, 4)
    assert [note.code for note in notes] == ["duplicates"]


def test_the_file_names_each_key_once() -> None:
    from importlib.resources import files

    import yaml

    text = files("firstbad.tools.readers").joinpath("aliases.yaml").read_text("utf-8")

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [k.value for k, _ in node.value if k.value != "<<"]
            assert [key for key in keys if keys.count(key) > 1] == []
            return super().construct_mapping(node, deep)

    assert yaml.load(text, Loader)
