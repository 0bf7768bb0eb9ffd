"""Ids of the engine against the trainer's: doubled start, template, content, retokenised text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, Run, Vocabulary

TOOL = "compare_engine_tokens"
Ids = Sequence[int]
MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]
STOP, START = 1, 2


def dump(make: MakeCapture, rows: Sequence[tuple[Ids, Ids, Ids]], step: int = 1) -> Capture:
    """Rows of prompt and answer as in the trainer, and of all ids in the engine."""

    def padded(parts: Sequence[Ids], fill: int, left: bool = False) -> np.ndarray:
        width = max(map(len, parts))
        out = np.full((len(parts), width), fill)
        for i, part in enumerate(parts):
            out[i, width - len(part) if left else 0 :][: len(part)] = part
        return out

    prompts, answers, engine = zip(*rows, strict=True)
    ids, asked = padded(answers, 0), padded(prompts, 0, left=True)
    return make(
        step,
        token_id=ids,
        source=np.where(ids > 0, 3, 0),
        prompt_token_id=asked,
        prompt_mask=asked > 0,
        engine_token_id=padded(engine, -1),
    )


def rows(edit: Callable[[int, list[int]], list[int]], n: int = 20) -> list[tuple[Ids, Ids, Ids]]:
    """Prompts of their own words between a start and an end token, with answers."""
    made: list[tuple[Ids, Ids, Ids]] = []
    for i in range(n):
        prompt = [START, 20 + i, 30 + i % 7, 9]
        answer = [40 + i % 5, 50, STOP]
        made.append((prompt, answer, [*edit(i, list(prompt)), *answer]))
    return made


def test_equal_ids(capture: MakeCapture, make_run: MakeRun, measure: Measure) -> None:
    m = measure(TOOL, make_run(captures=[dump(capture, rows(lambda i, p: p))]))
    assert (m["n_rows"], m["share_differs"], m["first_bad_step"]) == (20, 0.0, None)
    assert m["share_by_template"] is None


@pytest.mark.parametrize(
    ("edit", "doubled", "template", "tokens"),
    [
        (lambda i, p: [START, *p], 1.0, 1.0, 1.0),
        (lambda i, p: [*p, 8, 8], 0.0, 1.0, 2.0),
        (lambda i, p: [8, *p[1:-1], 7], 0.0, 1.0, 2.0),
        (lambda i, p: [p[0], p[1], 60 + i, p[3]], 0.0, 0.0, 1.0),
        (lambda i, p: [p[0], 70 + i, 71 + i, *p[1:]], 0.0, 0.0, 2.0),
    ],
    ids=["doubled start", "longer template", "other template", "other word", "more words"],
)
def test_an_edit_of_the_template_is_told_from_one_of_content(
    edit: Any, doubled: float, template: float, tokens: float, capture: MakeCapture,
    make_run: MakeRun, measure: Measure,
) -> None:  # fmt: skip
    m = measure(TOOL, make_run(captures=[dump(capture, rows(edit))]))
    assert m["share_prompt_differs"] == m["share_differs"] == 1.0
    assert m["share_first_doubled"] == doubled
    assert m["share_by_template"] == template
    assert m["share_by_content"] == 1.0 - template
    assert m["edit_tokens"] == tokens
    assert m["from_start"]


def test_a_doubled_start_in_the_trainer_counts_too(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    swapped = [([START, *p], a, [*p, *a]) for p, a, _ in rows(lambda i, p: p)]
    assert measure(TOOL, make_run(captures=[dump(capture, swapped)]))["share_first_doubled"] == 1


def test_text_that_was_tokenised_again(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    words = Vocabulary({5: "an", 6: "swer", 7: "answer", STOP: "</s>"}, frozenset({STOP}), 0)
    made = [([START, 9], [7, STOP], [START, 9, 5, 6, STOP]) for _ in range(9)]
    made.append(([START, 9], [7, STOP], [START, 9, 7, STOP]))
    m = measure(TOOL, make_run(captures=[dump(capture, made)], vocabulary=words))
    assert m["share_differs"] == m["share_completion_differs"] == 0.9
    assert m["share_same_text"] == 1.0


@pytest.mark.parametrize(
    ("ours", "theirs"), [([40, 50], [40, 50, STOP]), ([40, 50, STOP], [40, 50]), ([40, 9], [40, 8])]
)
def test_a_stop_token_put_or_taken_away_is_counted_apart(
    ours: list[int], theirs: list[int], capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    made = [([START, 9], ours, [START, 9, *theirs])] * 8
    m = measure(TOOL, make_run(captures=[dump(capture, made)]))
    assert (m["share_differs"], m["share_end_differs"], m["first_bad_step"]) == (0.0, 1.0, None)


def test_an_engine_that_writes_the_answer_alone(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    made = [(p, a, a) for p, a, _ in rows(lambda i, p: p)]
    assert measure(TOOL, make_run(captures=[dump(capture, made)]))["share_differs"] == 0.0


def test_the_first_step_with_other_ids(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    same, other = rows(lambda i, p: p), rows(lambda i, p: [*p, 8])
    captures = [dump(capture, same, 1), dump(capture, same, 5), dump(capture, other, 9)]
    m = measure(TOOL, make_run(captures=captures))
    assert (m["last_good_step"], m["first_bad_step"]) == (5, 9)
    assert m["share_differs"] == pytest.approx(1 / 3, abs=1e-5)


def test_without_ids_of_the_engine(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "token ids of the engine" in missing(TOOL, make_run())
