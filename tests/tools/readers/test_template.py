"""The chat template, the form of prompts, and end ids by the file that states them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firstbad.tools.readers import open_run

SETTINGS = {
    "eos_token": "<|im_end|>",
    "added_tokens_decoder": {"7": {"content": "<|im_end|>"}, "9": {"content": "<|endoftext|>"}},
}


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer/chat_template.jinja": "{{ x }}<|im_start|>"}, "{{ x }}<|im_start|>"),
        ({"tokenizer_config.json": json.dumps({"chat_template": "<s>{{ x }}"})}, "<s>{{ x }}"),
        (
            {"tokenizer_config.json": json.dumps({"chat_template": [{"template": "one"}, 3]})},
            "one",
        ),
        ({"tokenizer_config.json": json.dumps({"chat_template": 3})}, ""),
        ({}, ""),
    ],
)
def test_where_a_template_stands(
    make: Any, tmp_path: Path, files: dict[str, str], template: str
) -> None:
    make.state("trainer_state.json", [{"step": 1, "reward": 0.5, "frac_reward_zero_std": 0.0}])
    make.json("generation_config.json", {"eos_token_id": 9})
    for name, text in files.items():
        make.text(name, text)
    vocabulary = open_run(str(tmp_path)).vocabulary
    assert vocabulary is not None
    assert vocabulary.template == template


def test_end_ids_by_file(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", [{"step": 1, "reward": 0.5, "frac_reward_zero_std": 0.0}])
    make.json("config.json", {"model_type": "m", "eos_token_id": 9})
    make.json("generation_config.json", {"eos_token_id": [7, 9]})
    make.json("tokenizer_config.json", SETTINGS)
    vocabulary = open_run(str(tmp_path)).vocabulary
    assert vocabulary is not None
    assert dict(vocabulary.eos_by_file) == {
        "tokenizer": frozenset({7}),
        "model": frozenset({9}),
        "generation": frozenset({7, 9}),
    }
    assert vocabulary.eos_ids == frozenset({7, 9})


@pytest.mark.parametrize(
    ("prompt", "messages"), [("2+2?", False), ([{"role": "user", "content": "2+2?"}], True)]
)
def test_the_form_of_prompts_is_kept(
    make: Any, tmp_path: Path, prompt: Any, messages: bool
) -> None:
    make.state("trainer_state.json", [{"step": 1, "reward": 0.5, "frac_reward_zero_std": 0.0}])
    table = pa.table({
        "step": [1, 1],
        "prompt": [prompt, prompt],
        "completion": ["4", "5"],
        "correct": [1.0, 0.0],
    })  # fmt: skip
    (tmp_path / "completions").mkdir()
    pq.write_table(table, tmp_path / "completions" / "completions_00001.parquet")
    (batch,) = open_run(str(tmp_path)).rollouts.batches()
    assert batch.messages is messages
    assert list(batch.prompts) == ["2+2?", "2+2?"]
