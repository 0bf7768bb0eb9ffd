"""Position ids: rows that jump, rows that begin elsewhere, and what is neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, Run

TOOL = "check_positions"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
# Two rows: two of padding, two of the prompt, three sampled; and four, three.
SOURCE = np.array([[0, 0, 2, 2, 3, 3, 3], [2, 2, 2, 2, 3, 3, 3]])
ROW = [0, 1, 2, 3, 4, 5, 6]


def dump(capture: Callable[..., Capture], step: int, *rows: list[int], **more: Any) -> Capture:
    position = np.array(rows)
    source = more.pop("source", SOURCE)
    return capture(
        step,
        prompt_position=position[:, :4],
        position=position[:, 4:],
        prompt_source=source[:, :4],
        source=source[:, 4:],
    )


@pytest.mark.parametrize(
    ("rows", "jump", "shift", "by_padding"),
    [
        (([0, 0, 0, 1, 2, 3, 4], ROW), 0, 0, 0),
        (([1, 1, 0, 1, 2, 3, 4], ROW), 0, 0, 0),  # what stands on padding does not matter
        ((ROW, ROW), 0, 0.5, 1),  # every column counts
        (([0, 0, 5, 6, 7, 8, 9], ROW), 0, 0.5, 0),  # numbered on behind another row
        (([0, 0, 0, 1, 4, 5, 6], ROW), 0.5, 0, 0),  # answers numbered from the widest prompt
        (([0, 0, 0, 1, 2, 2, 2], ROW), 0.5, 0, 0),  # it stands still
        (([0, 0, 0, 1, 0, 1, 2], ROW), 0.5, 0, 0),  # it begins again at a sampled token
        (([0, 0, 0, 0, 1, 2, 3], ROW), 0, 0, 0),  # at one of a prompt: packed sequences
        (([0, 0, 0, 3, 4, 5, 6], ROW), 0, 0, 0),  # a jump inside the prompt: images do that
    ],
)
def test_how_rows_run(
    rows: tuple[list[int], list[int]], jump: float, shift: float, by_padding: float,
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure,
) -> None:  # fmt: skip
    m = measure(TOOL, make_run(captures=[dump(capture, 3, *rows)]))
    assert (m["n_rows"], m["jump_share"], m["shift_share"]) == (2, jump, shift)
    assert m["shift_is_padding"] == by_padding
    assert m["first_bad_step"] == (3 if jump or shift else None)


def test_counting_from_one_is_no_shift(
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure
) -> None:
    rows = [0, 0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]
    assert measure(TOOL, make_run(captures=[dump(capture, 3, *rows)]))["shift_share"] == 0


def test_padding_between_prompt_and_answer(
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure
) -> None:
    source = np.array([[2, 2, 0, 0, 3, 3, 3], [2, 2, 2, 2, 3, 3, 3]])
    sound = dump(capture, 1, [0, 1, 0, 0, 2, 3, 4], ROW, source=source)
    counted = dump(capture, 5, ROW, ROW, source=source)
    m = measure(TOOL, make_run(captures=[sound, counted]))
    assert (m["jump_share"], m["jump_since"], m["jump_median"]) == (0.25, 0.5, 3)
    assert (m["last_good_step"], m["first_bad_step"], m["from_start"]) == (1, 5, False)


def test_what_a_tool_returned_counts(
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure
) -> None:
    source = np.array([[0, 0, 2, 2, 3, 4, 3], [2, 2, 2, 2, 3, 4, 3]])
    left_out = [0, 0, 0, 1, 2, 3, 3], [0, 1, 2, 3, 4, 5, 5]
    m = measure(TOOL, make_run(captures=[dump(capture, 1, *left_out, source=source)]))
    assert (m["jump_share"], m["jump_median"]) == (1, 0)


def test_without_positions(
    make_run: MakeRun, capture: Callable[..., Capture], missing: Callable[..., str]
) -> None:
    bare = capture(1, source=np.array([[3, 3]]), token_id=np.array([[5, 6]]))
    assert "positions" in missing(TOOL, make_run(captures=[bare]))
