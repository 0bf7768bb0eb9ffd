"""The token table of a run whose rows are sound: for a person to check by eye."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from firstbad.tools.evidence import Evidence, Table
from firstbad.tools.run import Capture, Run, Vocabulary

TOOL = "check_masks"
MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
STOP, PAD = 1, 0  # of the fixture `words`


def sound(capture: MakeCapture, step: int, made: int, *, pads: int = 3) -> Capture:
    """One row: six prompt tokens, `made` sampled ones with the stop, and padding."""
    ids = np.array([[5] * (made - 1) + [STOP] + [PAD] * pads])
    mask = np.arange(made + pads)[None, :] < made
    return capture(
        step,
        token_id=ids,
        loss_mask=mask.astype(int),
        source=np.where(mask, 3, 0),
        prompt_source=np.full((1, 6), 2),
        prompt_token_id=np.full((1, 6), 4),
        prompt_loss_mask=np.zeros((1, 6), int),
        prompt_mask=np.ones((1, 6), bool),
    )


def table(found: Evidence) -> Table:
    return next(t for t in found.tables if t.title.startswith("token table"))


@pytest.mark.parametrize("known", [True, False])
def test_border_and_stop_of_a_long_row(
    known: bool, make_run: MakeRun, capture: MakeCapture, words: Vocabulary,
    evidence: Callable[..., Evidence],
) -> None:  # fmt: skip
    vocabulary = {"vocabulary": words} if known else {}
    shown = table(evidence(TOOL, make_run(captures=[sound(capture, 3, 200, pads=9)], **vocabulary)))
    assert shown.title == "token table: step 3, row 0"
    rows = [dict(zip(shown.columns, row, strict=True)) for row in shown.rows]
    at = [row["position"] for row in rows]
    assert at == [*range(-4, 16), *range(184, 204)]
    assert shown.cut_rows == 6 + 209 - 40
    assert [row["source"] for row in rows[3:5]] == ["prompt", "completion"]
    last = at.index(199)
    assert [(r["id"], r["in loss"], r["expected"]) for r in rows[last - 1 : last + 2]] == [
        (5, 1, 1),
        (STOP, 1, 1),
        (PAD, 0, 0),
    ]
    assert ("text" in shown.columns) is known


def test_a_short_row_is_shown_once(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, evidence: Callable[..., Evidence]
) -> None:
    shown = table(evidence(TOOL, make_run(captures=[sound(capture, 3, 6)], vocabulary=words)))
    assert [row[0] for row in shown.rows] == list(range(-6, 9))
    assert shown.cut_rows == 0


def test_a_wrong_row_of_a_later_capture_is_shown_instead(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, evidence: Callable[..., Evidence]
) -> None:
    wrong = capture(9, token_id=[[5, STOP, PAD]], loss_mask=[[1, 1, 1]])
    run = make_run(captures=[sound(capture, 3, 6), wrong], vocabulary=words)
    assert table(evidence(TOOL, run)).title == "token table: step 9, row 0"


def test_the_first_row_in_the_loss(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, evidence: Callable[..., Evidence]
) -> None:
    ids = [[5, STOP, PAD]] * 2
    left_out = capture(2, token_id=ids, loss_mask=[[0, 0, 0], [1, 1, 0]])
    shown = table(evidence(TOOL, make_run(captures=[left_out], vocabulary=words)))
    assert shown.title == "token table: step 2, row 1"
