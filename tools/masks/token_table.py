"""The token table: one row of a capture, token by token, with where each comes from and its masks.

R rows, T completion tokens, P prompt tokens.
"""

from __future__ import annotations

import numpy as np

from firstbad.tools.evidence import Scalar, Table
from firstbad.tools.run import (
    COMPLETION,
    PADDING,
    PROMPT,
    SYSTEM,
    TOOL,
    BoolArray,
    Capture,
    IntArray,
    Run,
)
from firstbad.tools.tokens import pad_id, sources

SHOWN = 40
"""Tokens of a row that are shown, ..."""
LEAD_IN = 4
"""... and how many of them before the first wrong one, or the border, and behind the stop."""
NAMES = {
    PADDING: "padding",
    SYSTEM: "system",
    PROMPT: "prompt",
    COMPLETION: "completion",
    TOOL: "tool",
}


def token_table(run: Run, capture: Capture, real: BoolArray, prompt: BoolArray, row: int) -> Table:
    """A row from a few tokens before its first wrong one on; a sound one about border and stop.

    `real` (R, T) is the mask that the ids call for, `prompt` (R, P) the one that the prompt has.
    Columns of masks that were not captured are left out; further objectives have their own.
    """
    ids, border = _side_by_side(capture, "token_id", row)
    loss, _ = _side_by_side(capture, "loss_mask", row)
    expected = np.concatenate([np.zeros(border, bool), real[row]])
    if len(loss) != len(ids):  # a prompt without ids, or without a mask, is left out
        ids, loss, expected, border = ids[border:], loss[-real.shape[1] :], real[row], 0
    source = _named(run, capture, ids, real, row, border)
    texts = run.vocabulary.texts if run.vocabulary else {}
    columns: dict[str, list[Scalar]] = {
        "position": [i - border for i in range(len(ids))],
        "id": [int(i) for i in ids],
        **({"text": [texts.get(int(i), "") for i in ids]} if texts else {}),
        "source": list(source),
    }
    attention, _ = _side_by_side(capture, "attention_mask", row)
    if len(attention) == len(ids):
        columns["attention"] = [int(a) for a in attention]
    columns["in loss"] = [int(m != 0) for m in loss]
    columns["expected"] = [int(e) for e in expected]
    for name in sorted(n for n in capture.arrays if n.startswith("loss_mask.")):
        other, _ = _side_by_side(capture, name, row)
        if len(other) == len(ids):
            columns[f"in {name.removeprefix('loss_mask.')}"] = [int(m != 0) for m in other]
    columns["advantage"] = _advantages(capture, row, border, len(ids))
    wrong = (loss != 0) != expected
    if wrong.any():
        shown = _from(int(np.argmax(wrong)) - LEAD_IN, SHOWN, len(ids))
    else:  # what a person checks: the border of the prompt, and the stop with what is behind it
        half = SHOWN // 2
        last = int(np.flatnonzero(expected)[-1]) if expected.any() else border
        stop = _from(last + 1 + LEAD_IN - half, half, len(ids))
        shown = sorted({*_from(border - LEAD_IN, half, len(ids)), *stop})
    return Table(
        title=f"token table: step {capture.step}, row {row}",
        columns=tuple(columns),
        rows=tuple(tuple(column[i] for column in columns.values()) for i in shown),
        cut_rows=len(ids) - len(shown),
    )


def _from(start: int, n: int, end: int) -> list[int]:
    """`n` places from `start` on, as far as the row goes."""
    return list(range(max(0, start), min(end, max(0, start) + n)))


def _side_by_side(capture: Capture, name: str, row: int) -> tuple[IntArray, int]:
    """Values of the row's prompt and completion, and how many are the prompt's; may be none."""
    after, before = capture.arrays.get(name), capture.arrays.get(f"prompt_{name}")
    values = np.empty(0, np.int64) if after is None else np.asarray(after[row]).astype(np.int64)
    if before is None:
        return values, 0
    given = np.asarray(before[row]).astype(np.int64)
    kinds, mask = capture.arrays.get("prompt_source"), capture.mask("prompt_mask")
    if kinds is not None and kinds.shape == before.shape:  # blanks stand behind a short prompt
        there = np.flatnonzero(np.asarray(kinds[row]) != PADDING)
        given = given[: there[-1] + 1 if len(there) else 0]
    elif mask is not None and mask.shape == before.shape:
        given = given[mask[row]]
    return np.concatenate([given, values]), len(given)


def _named(
    run: Run, capture: Capture, ids: IntArray, real: BoolArray, row: int, border: int
) -> tuple[str, ...]:
    own = sources(capture)
    made = ids[border:]
    padding = made == pad_id(run, made[~real[row]])
    kinds = np.where(padding & ~real[row], PADDING, COMPLETION) if own is None else own[row]
    names = [NAMES.get(int(kind), str(kind)) for kind in kinds]
    for i in np.flatnonzero((kinds == COMPLETION) & ~real[row]):
        names[i] = "after the stop"
    before, _ = _side_by_side(capture, "source", row)
    if own is None or len(before) != len(ids):
        given = ["prompt"] * border
    else:
        given = [NAMES.get(int(kind), str(kind)) for kind in before[:border]]
    return (*given, *names)


def _advantages(capture: Capture, row: int, border: int, n: int) -> list[Scalar]:
    advantage = capture.numbers("advantage")
    if advantage is None:
        return [None] * n
    if advantage.ndim == 1:
        return [round(float(advantage[row]), 4)] * n
    own = [round(float(a), 4) if np.isfinite(a) else None for a in advantage[row]]
    return [*[None] * border, *own]
