"""The mix of prompts: a lasting change of what they look like."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, RolloutBatch, Run
from firstbad.tools.stats import level_shift

SDS, SHARE = 5.0, 0.1
"""Spreads of a step, and share of the level, by which prompts differ where they changed."""


class Prompts(Dated):
    """The mix of prompts over the run; the onset is that of a change."""

    n_steps: int
    n_distinct: int
    shift_sds: float
    """Largest change of level of prompt length or vocabulary, in within-side spreads."""
    words_before: float | None
    words_after: float | None
    new_words_share: float | None
    """Of the words after the change: not seen before it."""
    changed: bool


@tool
def compare_prompts(run: Run, *, sds: float = SDS, share: float = SHARE) -> Measured[Prompts]:
    """A lasting change of the prompt mix.

    The mix is followed by the mean number of words and of characters per prompt; a change counts
    when the levels differ by more than `sds` spreads of a step and by more than `share`.

    Cannot tell: a change of difficulty between prompts that look alike.
    """
    batches = list(run.rollouts.batches())
    if not batches:
        raise NoData("no rollouts with their prompts")
    w, characters = _sizes(batches)
    steps = [b.step for b in batches]
    at, spreads, changed = _change(w, characters, sds, share)
    fresh = None
    if at is not None:
        old = {t for b in batches[:at] for p in set(b.prompts) for t in p.split()}
        new = [t for b in batches[at:] for p in set(b.prompts) for t in p.split()]
        fresh = round(float(np.mean([t not in old for t in new])), 6) if new else None
    bad = changed and at is not None
    distinct = len({p for b in batches for p in b.prompts})
    metrics = Prompts(
        n_steps=len(batches),
        n_distinct=distinct,
        shift_sds=round(min(spreads, 1e6), 4),
        words_before=round(float(w[:at].mean()), 3) if at else None,
        words_after=round(float(w[at:].mean()), 3) if at else None,
        new_words_share=fresh,
        changed=changed,
        last_good_step=steps[at - 1] if bad and at else None,
        first_bad_step=steps[at] if bad and at is not None else None,
    )
    text = f"{distinct} distinct prompts in {len(batches)} steps"
    if bad and at:
        text += (
            f"; prompts change at step {steps[at]}: {metrics.words_before:.1f} -> "
            f"{metrics.words_after:.1f} words"
        )
    table = Table(
        title="prompts before and after the change",
        columns=("before", "after"),
        rows=tuple(
            (batches[at - 1].prompts[i][:200], batches[at].prompts[i][:200])
            for i in range(0, min(len(batches[at - 1]), len(batches[at])), 8)
        )
        if bad and at
        else (),
    )
    return Measured(metrics, text, tables=(table,) if table.rows else (), signal="mix of prompts")


def prompts_of_groups(batch: RolloutBatch) -> list[str]:
    """The prompt of each group, by its first row, in order of group."""
    first: dict[int, str] = {}
    for group, prompt in zip(batch.group.tolist(), batch.prompts, strict=True):
        first.setdefault(group, prompt)
    return [first[group] for group in sorted(first)]


def prompt_change(batches: list[RolloutBatch]) -> int | None:
    """Index of the first batch with other prompts; None where they do not change for good."""
    if not batches:
        return None
    at, _, changed = _change(*_sizes(batches), SDS, SHARE)
    return at if changed else None


def _sizes(batches: list[RolloutBatch]) -> tuple[FloatArray, FloatArray]:
    """(S,) mean number of words, and of characters, of the prompts of each batch."""
    asked = [prompts_of_groups(batch) for batch in batches]
    words = [sum(len(p.split()) for p in prompts) / len(prompts) for prompts in asked]
    characters = [sum(map(len, prompts)) / len(prompts) for prompts in asked]
    return np.array(words), np.array(characters)


def _change(
    words: FloatArray, characters: FloatArray, sds: float, share: float
) -> tuple[int | None, float, bool]:
    shifts = [s for s in (level_shift(words), level_shift(characters)) if s is not None]
    if not shifts:
        return None, 0.0, False
    best = max(shifts, key=lambda s: s.sds)
    large = abs(best.after - best.before) > share * max(abs(best.before), 1e-9)
    return best.index, best.sds, bool(best.sds > sds and large)
