"""Command lines that launched a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.readers import open_run

ROW = {"step": 1, "reward": 0.5, "frac_reward_zero_std": 0.0}


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        (
            "+ python train.py --learning_rate 1e-6 --beta=0.04 --bf16 --loss_type grpo",
            {"learning_rate": 1e-6, "beta": 0.04, "bf16": True, "loss_type": "grpo"},
        ),
        (
            "Command: CUDA_VISIBLE_DEVICES=0 accelerate launch t.py --max-completion-length 512 "
            "--reward_weights 1.0 0.5 --top_k None",
            {"max_completion_length": 512, "reward_weights": [1.0, 0.5], "top_k": None},
        ),
        (
            "$ python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.optim.lr=1e-6 "
            "+trainer.use_v1=False",
            {"actor_rollout_ref.actor.optim.lr": 1e-6, "trainer.use_v1": False},
        ),
        ("loss=0.1 learning_rate=1e-6 step=3", {}),
        ("python is great --really", {}),
        ("python t.py --a 'unclosed --b 2", {}),
        ("use --learning_rate 1e-6 --beta 0 to train with python", {}),
    ],
)
def test_what_a_log_echoes(
    make: Any, tmp_path: Path, line: str, settings: dict[str, object]
) -> None:
    make.state("trainer_state.json", [ROW])
    make.text("train.log", f"starting\n{line}\nmore\n")
    run = open_run(str(tmp_path))
    assert dict(run.launch.values) == settings
    assert [source.ref for source in run.launch.sources] == (["train.log"] if settings else [])


def test_the_last_command_speaks(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", [ROW])
    make.text("a.log", "python t.py --beta 1 --bf16\npython t.py --beta 2 --bf16\n")
    assert open_run(str(tmp_path)).launch.values["beta"] == 2


def test_the_trackers_metadata(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", [ROW])
    words = ["--beta", "0.1", "--hub_token", "hf_secret", "--learning_rate", "-1"]
    make.json("wandb/run-1/files/wandb-metadata.json", {"args": words})
    values = open_run(str(tmp_path)).launch.values
    assert values == {"beta": 0.1, "hub_token": "<hidden>", "learning_rate": -1}


@pytest.mark.parametrize("text", ["[1]", '{"args": "x"}', '{"args": [1]}', "{"])
def test_damaged_metadata(make: Any, tmp_path: Path, text: str) -> None:
    make.state("trainer_state.json", [ROW])
    make.text("wandb-metadata.json", text)
    assert open_run(str(tmp_path)).launch.values == {}
