"""Assertions on who is trained: arrays of one batch, as training has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firstbad_recorder.sources import PADDING, PROMPT, SAMPLED, SYSTEM, TOOL

SHIFTS = (-2, -1, 1, 2)


def masks(
    source: Any,
    loss_mask: Any,
    attention_mask: Any = None,
    finish: Sequence[str | None] | None = None,
) -> dict[str, Any]:
    """Counts of tokens that are trained and must not be, and the other way round.

    Args:
        source: (R, L) where each token comes from; lists, or anything with `.tolist()`.
        loss_mask: (R, L) not 0 where the log-prob of the token at that place is trained.
        attention_mask: (R, L), not 0 where a token may be seen.
        finish: Why each row ended; `stop` rows must train their last token.

    Returns:
        `n_trained`, `n_trained_padding`, `n_trained_prompt`, `n_trained_tool`,
        `n_sampled_untrained` (in rows that are trained at all: a row may be left out whole),
        `shift` (places by which the mask must be moved to the right to lie on the sampled tokens;
        0 where it lies well, or no shift is what is wrong),
        `n_last_untrained` (stop rows whose last sampled token is not trained while others are),
        `n_unseen_trained` (trained places that attention does not see), `n_rows_untrained`,
        `offenders` (row and place of the first ten).

    Raises:
        ValueError: the arrays do not have the same shape.
    """
    origin, mask = _rows(source), _rows(loss_mask)
    seen = None if attention_mask is None else _rows(attention_mask)
    for other in (mask, seen):
        if other is not None and [len(r) for r in other] != [len(r) for r in origin]:
            raise ValueError("source and masks do not have the same shape")
    counts = dict.fromkeys(
        ("n_trained", "n_trained_padding", "n_trained_prompt", "n_trained_tool",
         "n_sampled_untrained", "n_last_untrained", "n_unseen_trained", "n_rows_untrained"), 0
    )  # fmt: skip
    unknown = {kind for row in origin for kind in row} - {*range(5)}
    if unknown:
        raise ValueError(f"source holds {min(unknown)}, which FORMAT.md does not know")
    offenders: list[list[int]] = []
    names = {PADDING: "n_trained_padding", SYSTEM: "n_trained_prompt", PROMPT: "n_trained_prompt",
             TOOL: "n_trained_tool"}  # fmt: skip
    for i, (where, trained) in enumerate(zip(origin, mask)):
        n = sum(map(bool, trained))
        counts["n_trained"] += n
        sampled = [t for t, kind in enumerate(where) if kind == SAMPLED]
        if not n:
            counts["n_rows_untrained"] += bool(sampled)
            continue
        for t, (kind, on) in enumerate(zip(where, trained)):
            wrong = bool(on) != (kind == SAMPLED)
            if wrong:
                counts["n_sampled_untrained" if not on else names[kind]] += 1
                offenders.append([i, t])
            if on and seen is not None and not seen[i][t]:
                counts["n_unseen_trained"] += 1
        stopped = finish is not None and finish[i] == "stop"
        if stopped and sampled and not trained[sampled[-1]]:
            counts["n_last_untrained"] += 1
    return {**counts, "shift": _shift(origin, mask), "offenders": offenders[:10]}


def _rows(values: Any) -> list[list[int]]:
    rows = values.tolist() if hasattr(values, "tolist") else values
    return [[int(v) for v in row] for row in rows]


def _shift(source: list[list[int]], mask: list[list[int]]) -> int:
    """Only where another place fits in all rows that are trained, and this one does not."""
    rows = [(s, m) for s, m in zip(source, mask) if any(m)]
    if not rows or all(_fits(s, m, 0) for s, m in rows):
        return 0
    return next((by for by in SHIFTS if all(_fits(s, m, by) for s, m in rows)), 0)


def _fits(source: list[int], mask: list[int], by: int) -> bool:
    moved = {t + by for t, on in enumerate(mask) if on}
    wanted = {t for t, kind in enumerate(source) if kind == SAMPLED}
    # What falls over the edge of the row cannot be compared.
    return {t for t in moved if 0 <= t < len(mask)} == {
        t for t in wanted if 0 <= t - by < len(mask)
    }
