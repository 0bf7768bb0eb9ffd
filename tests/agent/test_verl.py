"""A run in verl's formats (made by hand): what it leaves closes the layers, or is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.results import Verdict

GROUPS, SIZE, STEPS = 6, 8, 40
ENGINE = {"training/rollout_probs_diff_mean": 0.004, "rollout_corr/k3_kl": 0.001}
CONFIG: dict[str, Any] = {
    "actor_rollout_ref": {
        "actor": {
            "ppo_mini_batch_size": GROUPS,
            "use_kl_loss": True,
            "kl_loss_coef": 0.02,
            "loss_agg_mode": "token-mean",
        },
        "rollout": {"n": SIZE, "name": "vllm"},
    },
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {"train_batch_size": GROUPS, "max_response_length": 60},
}


def write(
    folder: Path,
    *,
    factor: float = 1.0,
    engine: bool = True,
    config: dict[str, Any] | None = CONFIG,
) -> Path:
    """Metrics, dumps and settings; `factor` multiplies the logged policy term."""
    rng = np.random.default_rng(3)
    (folder / "rollouts").mkdir(parents=True)
    lines = []
    for step in range(1, STEPS + 1):
        score = (rng.random((GROUPS, SIZE)) < 0.5).astype(float)
        n = rng.integers(5, 50, (GROUPS, SIZE))
        centred = score - score.mean(1, keepdims=True)
        advantage = centred / (score.std(1, ddof=1, keepdims=True) + 1e-6)
        policy = -float((advantage * n).sum() / n.sum())
        rows = [
            {"input": f"add {step} and {g}", "output": "x " * n[g, i], "score": score[g, i]}
            for g in range(GROUPS)
            for i in range(SIZE)
        ]
        dump = "\n".join(json.dumps({**row, "step": step}) for row in rows)
        (folder / "rollouts" / f"{step}.jsonl").write_text(dump)
        data = {
            "critic/score/mean": float(score.mean()),
            "actor/pg_loss": factor * policy,
            "actor/kl_loss": 0.01 + 0.001 * rng.random(),
            "actor/grad_norm": 0.5 + 0.05 * rng.random(),
            "actor/entropy": 1.0 + 0.02 * rng.random(),
            "actor/lr": 1e-6,
            "actor/pg_clipfrac": 0.0,
            "response_length/mean": float(n.mean()),
            "training/global_step": step,
            **(ENGINE if engine else {}),
        }
        lines.append(json.dumps({"step": step, "data": data}))
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def walk(folder: Path) -> Verdict:
    found = investigate(str(folder), out=folder.parent / "incidents")
    assert isinstance(found, Finished)
    return found.verdict


def test_what_verl_leaves_closes_loss_and_probability(tmp_path: Path) -> None:
    found = walk(write(tmp_path / "run"))
    layers = {r.id: (r.outcome, r.strength) for r in found.layers}
    assert layers["probability"] == ("pass", "proxy")
    assert layers["accumulation"] == ("pass", "direct")
    assert layers["masks"] == ("pass", "proxy")
    identity = next(c for c in found.checks if c.check == "loss_identity")
    assert "policy term" in identity.message
    assert "KL" in identity.excludes_not
    assert not found.findings


def test_a_wrong_sign_is_found_in_the_policy_term(tmp_path: Path) -> None:
    found = walk(write(tmp_path / "run", factor=-1.0))
    assert found.leading is not None
    assert found.leading.cause == "grad.objective"


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_factor_may_be_the_loggers_and_is_asked_about(tmp_path: Path, factor: float) -> None:
    """Before 0.8 verl logged the term divided by the micro-batches, or summed over them."""
    found = walk(write(tmp_path / "run", factor=factor))
    assert found.outcome == "undetermined"
    assert not found.findings
    (need,) = [r.need for r in found.requests if r.layer == "accumulation"]
    assert "ppo_micro_batch_size_per_gpu" in need


def test_missing_settings_and_engine_figures_are_asked_for_in_verls_words(tmp_path: Path) -> None:
    found = walk(write(tmp_path / "run", engine=False, config=None))
    assert found.outcome == "undetermined"
    needs = [r.need for r in found.requests if r.layer == "probability"]
    assert [".hydra/config.yaml" in needs[0], "calculate_log_probs=True" in needs[1]] == [True] * 2
    found = walk(write(tmp_path / "second", engine=False))
    needs = [r.need for r in found.requests if r.layer == "probability"]
    assert len(needs) == 1
    assert "calculate_log_probs" in needs[0]
    assert not [r for r in found.requests if "rollout_data_dir" in r.need], "they are there"


def test_kl_in_the_reward_hides_the_advantages(tmp_path: Path) -> None:
    config = {**CONFIG, "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": True}}
    found = walk(write(tmp_path / "run", config=config))
    identity = next(c for c in found.checks if c.check == "loss_identity")
    assert identity.strength != "direct"


def test_several_updates_per_batch_leave_the_loss_unread(tmp_path: Path) -> None:
    config = {**CONFIG, "data": {"train_batch_size": 4 * GROUPS, "max_response_length": 60}}
    found = walk(write(tmp_path / "run", config=config))
    identity = next(c for c in found.checks if c.check == "loss_identity")
    assert identity.strength != "direct"
