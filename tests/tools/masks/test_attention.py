"""Attention masks against where tokens come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, Run

TOOL = "check_attention"

MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]

# Two rows: padding before the prompt of the first, padding behind the answer of the second.
PROMPT = [[0, 2, 2], [2, 2, 2]]
ANSWER = [[3, 4, 3, 3], [3, 3, 0, 0]]


def made(capture: MakeCapture, step: int, prompt: Any, answer: Any) -> Capture:
    return capture(
        step,
        token_id=np.ones_like(ANSWER),
        source=ANSWER,
        prompt_source=PROMPT,
        attention_mask=answer,
        prompt_attention_mask=prompt,
    )


RIGHT = ([[0, 1, 1], [1, 1, 1]], [[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("prompt", "answer", "hidden", "seen"),
    [
        (*RIGHT, 0, 0),
        ([[1, 1, 1], [1, 1, 1]], RIGHT[1], 0, 1),  # padding before the row
        (RIGHT[0], [[1, 0, 1, 1], [1, 1, 0, 0]], 1, 0),  # what the tool returned is hidden
        (RIGHT[0], [[1, 1, 1, 1], [1, 1, 1, 1]], 0, 0),  # nothing sees what stands behind it
    ],
)
def test_tokens_hidden_and_padding_seen(
    make_run: MakeRun,
    capture: MakeCapture,
    measure: Measure,
    prompt: Any,
    answer: Any,
    hidden: int,
    seen: int,
) -> None:
    dumps = [made(capture, 4, *RIGHT), made(capture, 9, prompt, answer)]
    found = measure(TOOL, make_run(captures=dumps))
    assert (found["n_rows"], found["tokens_hidden"], found["padding_seen"]) == (4, hidden, seen)
    assert found["share_rows_wrong"] == (0.25 if hidden or seen else 0.0)
    assert found["first_bad_step"] == (9 if hidden or seen else None)


def test_a_row_that_is_not_trained_may_be_hidden(
    make_run: MakeRun, capture: MakeCapture, measure: Measure
) -> None:
    hidden = [[0, 0, 0, 0], [1, 1, 0, 0]]
    for trained, expected in ((0, 0), (1, 4)):
        found = made(capture, 4, RIGHT[0], hidden)
        loss = np.array([[trained] * 4, [1, 1, 0, 0]])
        found = replace(found, arrays={**found.arrays, "loss_mask": loss})
        assert measure(TOOL, make_run(captures=[found]))["tokens_hidden"] == expected


def test_without_sources(
    make_run: MakeRun, capture: MakeCapture, missing: Callable[..., str]
) -> None:
    dump = capture(1, token_id=[[5]], attention_mask=[[1]])
    assert "no captures that hold an attention mask" in missing(TOOL, make_run(captures=[dump]))
