"""Token texts and the ids that end an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.readers import open_run
from firstbad.tools.run import Vocabulary


def vocabulary(make: Any, tmp_path: Path) -> Vocabulary | None:
    make.state("trainer_state.json", [{"step": 1, "reward": 1.0}])
    return open_run(str(tmp_path)).vocabulary


def test_whole_words(make: Any, tmp_path: Path) -> None:
    make.json(
        "tokenizer/tokenizer.json",
        {
            "added_tokens": [{"id": 3, "content": "<|end|>"}, {"id": 0, "content": "<pad>"}],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": {"sort": 1, ":": 2}},
        },
    )
    make.json("tokenizer/tokenizer_config.json", {"eos_token": "<|end|>", "pad_token": "<pad>"})
    found = vocabulary(make, tmp_path)
    assert found is not None
    assert dict(found.texts) == {0: "<pad>", 1: "sort", 2: ":", 3: "<|end|>"}
    assert len(found.texts) == 4
    assert (found.eos_ids, found.pad_id) == (frozenset({3}), 0)
    names = ("tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json")
    assert tuple(source.ref for source in found.sources) == names


def test_byte_level(make: Any, tmp_path: Path) -> None:
    vocab = {"hello": 0, "Ġworld": 1, "Ċ": 2, "Ã©": 3, "Ã": 4, "日": 5}
    make.json("tokenizer.json", {
        "added_tokens": [],
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })  # fmt: skip
    found = vocabulary(make, tmp_path)
    assert found is not None
    assert [found.texts[i] for i in range(6)] == ["hello", " world", "\n", "é", "\ufffd", "日"]
    assert found.eos_ids == frozenset()
    assert found.pad_id is None


def test_sentence_pieces(make: Any, tmp_path: Path) -> None:
    make.json("tokenizer.json", {
        "decoder": {"type": "Sequence"},
        "model": {"type": "Unigram", "vocab": [["▁a", -1.0], ["<0x0A>", -2.0], ["b", -3.0]]},
    })  # fmt: skip
    found = vocabulary(make, tmp_path)
    assert found is not None
    assert dict(found.texts) == {0: " a", 1: "\n", 2: "b"}


def test_end_ids_of_all_files_count(make: Any, tmp_path: Path) -> None:
    make.json("config.json", {"model_type": "x", "eos_token_id": 1, "pad_token_id": 9})
    make.json("generation_config.json", {"eos_token_id": [2, 1]})
    make.json(
        "tokenizer_config.json",
        {
            "eos_token": {"content": "</s>"},
            "added_tokens_decoder": {"7": {"content": "</s>"}, "x": {"content": "y"}, "8": 3},
        },
    )
    found = vocabulary(make, tmp_path)
    assert found is not None
    assert found.eos_ids == frozenset({1, 2, 7})
    assert found.pad_id == 9
    assert dict(found.texts) == {}
    with pytest.raises(KeyError):
        found.texts[0]


def test_without_any_file(make: Any, tmp_path: Path) -> None:
    assert vocabulary(make, tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"model": 3}', '{"added_tokens": [1, {"id": "x"}], "model": {}}']
)
def test_a_broken_file_has_no_texts(make: Any, tmp_path: Path, text: str) -> None:
    make.text("tokenizer.json", text)
    make.text("tokenizer_config.json", "[")
    found = vocabulary(make, tmp_path)
    assert found is None or dict(found.texts) == {}
