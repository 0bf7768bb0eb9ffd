"""Stop tokens by file, and completions that go on behind one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from firstbad.tools.run import RolloutBatch, Run, Vocabulary

TOOL = "check_stop_ids"
TEXTS = {7: "<|im_end|>", 9: "<|endoftext|>"}
MakeRun = Callable[..., Run]
Batch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def said(
    make_run: MakeRun, batch: Batch, texts: Sequence[str], steps: int = 4, **files: Any
) -> Run:
    """The same completions in each step; files state stop ids by their name."""
    by_file = {name: frozenset(ids) for name, ids in files.items()}
    ids = frozenset().union(*by_file.values())
    vocabulary = Vocabulary(TEXTS, ids, None, eos_by_file=by_file) if files else None
    rollouts = [
        batch(s, rewards={"r": [0.0] * len(texts)}, completions=list(texts))
        for s in range(1, steps + 1)
    ]
    return make_run(rollouts=rollouts, vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("text", "holds", "goes_on"),
    [
        ("it is 4<|im_end|>", True, False),
        ("it is 4<|im_end|>\n", True, False),
        ("it is 4<|im_end|><|endoftext|><|endoftext|>", True, False),  # padding
        ("it is 4<|im_end|><pad> <|pad|>", True, False),
        ("it is 4<|im_end|> and then 5", True, True),
        ("it is 4<|endoftext|>Human: what", True, True),
        ("call<|im_end|>\n<|im_start|>tool\n4<|im_end|>", True, False),  # another turn
        ("it is 4", False, False),
        ("2 < 3 and so on", False, False),
    ],
)
def test_what_follows_a_stop_token(
    make_run: MakeRun, batch: Batch, measure: Measure, text: str, holds: bool, goes_on: bool
) -> None:
    found = measure(TOOL, said(make_run, batch, [text, "nothing"], tokenizer=[7], generation=[9]))
    assert (found["n_rows"], found["holds_share"]) == (8, 0.5 * holds)
    assert found["goes_on_share"] == 0.5 * goes_on
    assert (found["first_bad_step"], found["from_start"]) == (
        (1, True) if goes_on else (None, False)
    )


@pytest.mark.parametrize(
    ("files", "conflict"),
    [
        ({"tokenizer": [7], "model": [7], "generation": [7, 9]}, False),
        ({"tokenizer": [7], "model": [9], "generation": [7, 9]}, False),
        ({"tokenizer": [7], "model": [9], "generation": [9]}, True),
        ({"tokenizer": [7], "model": [9]}, True),
        ({"tokenizer": [7]}, False),
        ({"model": [9], "generation": [7]}, False),
    ],
)
def test_files_that_differ(
    make_run: MakeRun,
    batch: Batch,
    measure: Measure,
    files: dict[str, Any],
    conflict: bool,
) -> None:
    found = measure(TOOL, said(make_run, batch, ["x"], **files))
    assert (found["n_files"], found["conflict"]) == (len(files), conflict)


def test_the_usual_stop_tokens_are_known_without_a_tokenizer(
    make_run: MakeRun, batch: Batch, measure: Measure
) -> None:
    found = measure(TOOL, said(make_run, batch, ["4</s> and 5", "4</s>"]))
    assert (found["holds_share"], found["goes_on_share"]) == (1.0, 0.5)


def test_a_stop_that_is_no_longer_honoured_is_dated(
    make_run: MakeRun, batch: Batch, measure: Measure
) -> None:
    rollouts = [
        batch(s, rewards={"r": [0.0]}, completions=["4</s>" + " on" * (s > 6)])
        for s in range(1, 13)
    ]
    found = measure(TOOL, make_run(rollouts=rollouts))
    assert (found["last_good_step"], found["first_bad_step"]) == (6, 7)


def test_nothing_to_look_at(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "neither" in missing(TOOL, make_run())
