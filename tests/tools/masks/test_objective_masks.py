"""Loss masks of further objectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Capture, Run, Vocabulary

TOOL = "check_objective_masks"

MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]

IDS = [[5, 9, 6, 1, 0], [5, 6, 7, 1, 0]]
SOURCE = [[3, 4, 3, 3, 0], [3, 3, 3, 3, 0]]
PROMPT = [[0, 2, 2, 2], [2, 2, 2, 2]]
OWN = [[1, 0, 1, 1, 0], [1, 1, 1, 1, 0]]
NONE = [[0] * 4] * 2


def dump(capture: MakeCapture, **masks: Any) -> Capture:
    return capture(
        3, token_id=IDS, source=SOURCE, prompt_source=PROMPT, loss_mask=OWN,
        prompt_token_id=np.where(np.asarray(PROMPT) > 0, 8, 0), **masks,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mask", "prompt", "padding", "prompt_part", "tool_part", "whole"),
    [
        (OWN, NONE, 0, 0, 0, (0, 0)),
        ([[1, 0, 1, 1, 1], OWN[1]], NONE, 1, 0, 0, (0, 0)),
        (OWN, [[0, 0, 1, 1], [0, 0, 0, 0]], 0, 2, 0, (0, 0)),  # two of seven prompt tokens
        (OWN, [[0, 1, 1, 1], [1, 1, 1, 1]], 0, 0, 0, (1, 0)),  # whole prompts
        ([[1, 1, 1, 1, 0], OWN[1]], [[1, 1, 1, 1], [1, 1, 1, 1]], 1, 0, 0, (1, 1)),
    ],
)
def test_each_kind_of_token(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    mask: Any,
    prompt: Any,
    padding: int,
    prompt_part: int,
    tool_part: int,
    whole: tuple[int, int],
) -> None:
    one = dump(capture, **{"loss_mask.sft": mask, "prompt_loss_mask.sft": prompt})
    found = measure(TOOL, make_run(captures=[one], vocabulary=words))
    assert (found["n_objectives"], found["padding_trained"]) == (1, padding)
    assert (found["prompt_in_part"], found["tool_in_part"]) == (prompt_part, tool_part)
    assert (found["prompt_whole"], found["tool_whole"]) == whole
    assert found["from_start"] == bool(padding or prompt_part or tool_part)


def test_rows_that_an_objective_leaves_out_do_not_count(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, evidence: Callable[..., Evidence]
) -> None:
    masks = {"loss_mask.sft": [[0] * 5, OWN[1]], "prompt_loss_mask.sft": [[0] * 4, [1] * 4]}
    found = evidence(TOOL, make_run(captures=[dump(capture, **masks)], vocabulary=words))
    assert found.metrics is not None
    assert (found.metrics["prompt_in_part"], found.metrics["prompt_whole"]) == (0, 1)
    assert found.tables[0].rows == ((3, "sft", 1, "4 of 4", "0 of 0", "0 of 1", "4 of 4"),)


def test_no_further_objective(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    found = measure(TOOL, make_run(captures=[dump(capture)], vocabulary=words))
    assert (found["n_captures"], found["n_objectives"]) == (1, 0)
