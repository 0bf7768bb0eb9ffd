"""Position ids of captured rows against the count of the tokens that can be seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import COMPLETION, PADDING, Capture, IntArray, Run


class Positions(Dated):
    """Rows by how their positions run, over all captures.

    The onset is that of rows that jump; without any, of rows that begin elsewhere.
    """

    n_rows: int
    jump_share: float
    """Share of rows in which a sampled token does not stand one behind the token before it, with
    padding not counted. Packed sequences begin at a token of a prompt, which is none."""
    jump_since: float | None
    """... of the rows from the first capture with more than 2 % of them on; None without one."""
    jump_median: float | None
    """Median of such steps from one token to the next, which are 1 elsewhere."""
    shift_share: float
    """Share of rows that begin at another position than the first one without padding (or 0, where
    all have some): legal where a model knows positions only relative to each other."""
    shift_is_padding: float
    """Share of those that begin as much later as they have padding before them."""


@dataclass(frozen=True)
class _Rows:
    step: int
    jumps: IntArray
    """(R,) first step to a sampled token that is not 1; 1 where there is none."""
    first: IntArray
    """(R,) position of the first token."""
    padding: IntArray
    """(R,) padding before it."""


@tool
def check_positions(run: Run) -> Measured[Positions]:
    """Position ids of the trainer's forward pass against the tokens of the row.

    Expected: one more from each token to the next sampled one, whatever padding lies between.
    Where a row begins is told apart: it changes nothing for a model whose positions are relative.

    Cannot tell: positions inside the prompt, which several images or rotary axes may fill in other
    ways; whether the engine uses the same ones.
    """
    rows = [found for capture in run.captures if (found := _rows(capture)) is not None]
    if not rows:
        raise NoData("no captures that hold positions and the source of tokens")
    start = _start(rows)
    jumped = [r.jumps != 1 for r in rows]
    shifted = [r.first != start for r in rows]
    whole = np.concatenate(shifted)
    by_padding = np.concatenate([r.first - start == r.padding for r in rows]) & whole
    steps = np.concatenate([r.jumps for r in rows])
    bad = [r.step for r, j in zip(rows, jumped, strict=True) if j.mean() > 0.02]
    first = bad or [r.step for r, s in zip(rows, shifted, strict=True) if s.mean() > 0.02]
    metrics = Positions(
        n_rows=len(whole),
        jump_share=round(float((steps != 1).mean()), 6),
        jump_since=round(
            float(np.concatenate([r.jumps != 1 for r in rows if r.step >= bad[0]]).mean()), 6
        )
        if bad
        else None,
        jump_median=float(np.median(steps[steps != 1])) if (steps != 1).any() else None,
        shift_share=round(float(whole.mean()), 6),
        shift_is_padding=round(float(by_padding.sum() / max(1, whole.sum())), 6),
        last_good_step=max((r.step for r in rows if first and r.step < first[0]), default=None),
        first_bad_step=first[0] if first else None,
        from_start=bool(first) and first[0] == rows[0].step,
        sampled=True,
    )
    return Measured(
        metrics,
        f"{number(len(whole))} captured rows: positions jump in {percent(metrics.jump_share)}, and "
        f"{percent(metrics.shift_share)} begin elsewhere than at {start}",
        window=(rows[0].step, rows[-1].step),
        signal="position ids",
    )


def _start(rows: list[_Rows]) -> int:
    """The least that a row without padding begins at, in the first capture that has one; or 0."""
    bare = (r.first[r.padding == 0] for r in rows)
    return next((int(first.min()) for first in bare if len(first)), 0)


def _rows(capture: Capture) -> _Rows | None:
    parts = [
        (capture.arrays.get(p + "source"), capture.numbers(p + "position")) for p in ("prompt_", "")
    ]
    there = [(s, at) for s, at in parts if s is not None and at is not None and s.shape == at.shape]
    if not there or capture.arrays.get("source") is not there[-1][0]:
        return None
    source = np.concatenate([np.asarray(s) for s, _ in there], axis=1)
    position = np.concatenate([at for _, at in there], axis=1)
    token = source != PADDING
    held = token.any(axis=1) & np.isfinite(np.where(token, position, 0)).all(axis=1)
    source, position, token = source[held], position[held], token[held]
    if not len(source):
        return None
    row = np.nonzero(token)[0]
    at, made = position[token], source[token] == COMPLETION
    step = np.diff(at)
    odd = (row[1:] == row[:-1]) & made[1:] & (step != 1)
    jumps = np.ones(len(source), np.int64)
    jumps[row[1:][odd][::-1]] = step[odd][::-1]  # the first of each row stays
    begins = token.argmax(axis=1)
    return _Rows(
        capture.step,
        jumps,
        position[np.arange(len(source)), begins].astype(np.int64),
        begins.astype(np.int64),
    )
