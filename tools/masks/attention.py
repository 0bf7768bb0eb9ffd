"""Attention masks of captured rows: who can be seen?"""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import PADDING, Capture, Run


class Attention(Dated):
    """Tokens that are hidden, and padding that is not, over all captures."""

    n_rows: int
    tokens_hidden: int
    """Prompt, completion and tool tokens with attention 0."""
    padding_seen: int
    """Padding before the first token of a row with attention 1: what comes later sees it."""
    share_rows_wrong: float
    wrong_since: float | None
    """... of the captures from the onset on; None without one."""


@tool
def check_attention(run: Run) -> Measured[Attention]:
    """Attention masks against where each token comes from.

    Expected: 1 for every token, 0 for padding. Padding behind a row is left out: nothing that
    comes before it sees it. So are hidden tokens of rows of which no token is trained, as TRL hides
    what it masks.

    Cannot tell: attention that the model computes otherwise than the mask says.
    """
    counts = [c for capture in run.captures if (c := _count(capture)) is not None]
    if not counts:
        raise NoData("no captures that hold an attention mask and the source of tokens")
    bad = [step for step, rows, _, _, wrong in counts if wrong > 0.02 * rows]
    good = [step for step, *_ in counts if not bad or step < bad[0]]
    rows = sum(c[1] for c in counts)
    metrics = Attention(
        n_rows=rows,
        tokens_hidden=sum(c[2] for c in counts),
        padding_seen=sum(c[3] for c in counts),
        share_rows_wrong=round(sum(c[4] for c in counts) / max(1, rows), 6),
        wrong_since=_since(counts, bad[0]) if bad else None,
        last_good_step=good[-1] if good and bad else None,
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    return Measured(
        metrics,
        f"{rows} captured rows: {metrics.tokens_hidden} tokens hidden from attention, "
        f"{metrics.padding_seen} of padding before a row seen",
        window=(counts[0][0], counts[-1][0]),
        signal="attention mask",
    )


def _since(counts: list[tuple[int, int, int, int, int]], step: int) -> float:
    """Share of wrong rows in the captures from a step on."""
    late = [c for c in counts if c[0] >= step]
    return round(sum(c[4] for c in late) / max(1, sum(c[1] for c in late)), 6)


def _count(capture: Capture) -> tuple[int, int, int, int, int] | None:
    """Step, rows, tokens hidden, padding seen, rows with either."""
    parts = [(capture.arrays.get(p + "source"), capture.mask(p + "attention_mask")) for p in _PARTS]
    there = [(s, a) for s, a in parts if s is not None and a is not None and s.shape == a.shape]
    if len(there) < len(_PARTS):
        return None
    source = np.concatenate([np.asarray(s) for s, _ in there], axis=1)
    seen = np.concatenate([a for _, a in there], axis=1)
    token = source != PADDING
    if not seen.any() or not token.any():
        return None
    before = ~np.maximum.accumulate(token, axis=1)
    hidden, padding = token & ~seen, before & seen
    loss = capture.mask("loss_mask") if hidden.any() else None
    if loss is not None and len(loss) == len(hidden) and loss.any():
        hidden &= loss.any(axis=1, keepdims=True)  # rows out of the loss may be hidden whole
    wrong = int((hidden | padding).any(axis=1).sum())
    return capture.step, len(source), int(hidden.sum()), int(padding.sum()), wrong


_PARTS = ("prompt_", "")
