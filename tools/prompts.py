"""The prompts that training draws: duplicates, and a change of what they look like."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run
from firstbad.tools.stats import level_shift


class Prompts(Dated):
    """Variety of prompts, and their mix over the run; the onset is that of a change of mix."""

    n_steps: int
    n_distinct: int
    groups_per_step: float
    duplicate_share: float
    """Of groups: another group of the same step has the same prompt."""
    duplicate_share_worst: float
    """The same over the tenth of the run where it is highest."""
    duplicate_excess: float
    """`duplicate_share_worst` less what drawing from the run's distinct prompts gives by chance."""
    adjacent_share: float
    """Of prompts: the step before had the same prompt."""
    adjacent_excess: float
    """... less chance."""
    repeated_share: float
    """Of prompts: seen at any earlier step."""
    shift_sds: float
    """Largest change of level of prompt length or vocabulary, in within-side spreads."""
    words_before: float | None
    words_after: float | None
    new_words_share: float | None
    """Of the words after the change: not seen before it."""
    changed: bool


@tool
def compare_prompts(run: Run) -> Measured[Prompts]:
    """Duplicated prompts within and across steps, and a lasting change of the prompt mix.

    The mix is followed by the mean number of words and of characters per prompt; a change counts
    when the levels differ by more than five spreads of a step and by more than a tenth.

    Cannot tell: a change of difficulty between prompts that look alike.
    """
    batches = list(run.rollouts.batches())
    if not batches:
        raise NoData("no rollouts with their prompts")
    seen: set[str] = set()
    last: set[str] = set()
    duplicate, adjacent, repeated = [], [], []
    words, characters, groups = [], [], []
    for batch in batches:
        first = [int(np.flatnonzero(batch.group == g)[0]) for g in np.unique(batch.group)]
        prompts = [batch.prompts[i] for i in first]
        distinct = set(prompts)
        groups.append(len(prompts))
        duplicate.append(1 - len(distinct) / len(prompts))
        adjacent.append(len(distinct & last) / len(distinct))
        repeated.append(len(distinct & seen) / len(distinct))
        words.append(float(np.mean([len(p.split()) for p in prompts])))
        characters.append(float(np.mean([len(p) for p in prompts])))
        seen |= distinct
        last = distinct
    steps = [b.step for b in batches]
    by_chance = float(np.mean(groups)) / max(1, len(seen))
    at, sds, changed = _change(np.array(words), np.array(characters))
    w = np.array(words)
    fresh = None
    if at is not None:
        old = {t for b in batches[:at] for p in set(b.prompts) for t in p.split()}
        new = [t for b in batches[at:] for p in set(b.prompts) for t in p.split()]
        fresh = round(float(np.mean([t not in old for t in new])), 6) if new else None
    bad = changed and at is not None
    metrics = Prompts(
        n_steps=len(batches),
        n_distinct=len(seen),
        groups_per_step=round(float(np.mean(groups)), 3),
        duplicate_share=round(float(np.mean(duplicate)), 6),
        duplicate_share_worst=_worst(np.array(duplicate)),
        duplicate_excess=round(_worst(np.array(duplicate)) - by_chance / 2, 6),
        adjacent_share=round(float(np.mean(adjacent)), 6),
        adjacent_excess=round(float(np.mean(adjacent)) - by_chance, 6),
        repeated_share=round(float(np.mean(repeated)), 6),
        shift_sds=round(min(sds, 1e6), 4),
        words_before=round(float(w[:at].mean()), 3) if at else None,
        words_after=round(float(w[at:].mean()), 3) if at else None,
        new_words_share=fresh,
        changed=changed,
        last_good_step=steps[at - 1] if bad and at else None,
        first_bad_step=steps[at] if bad and at is not None else None,
    )
    text = (
        f"{len(seen)} distinct prompts in {len(batches)} steps; "
        f"{100 * metrics.duplicate_share:.0f} % of groups repeat a prompt of their step"
    )
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
    return Measured(
        metrics,
        text,
        tables=(table,) if table.rows else (),
        sources=run.rollouts.sources,
        signal="mix of prompts",
    )


def _change(words: FloatArray, characters: FloatArray) -> tuple[int | None, float, bool]:
    shifts = [s for s in (level_shift(words), level_shift(characters)) if s is not None]
    if not shifts:
        return None, 0.0, False
    best = max(shifts, key=lambda s: s.sds)
    large = abs(best.after - best.before) > 0.1 * max(abs(best.before), 1e-9)
    return best.index, best.sds, bool(best.sds > 5 and large)


def _worst(share: FloatArray) -> float:
    size = max(1, len(share) // 10)
    sums = np.convolve(share, np.ones(size) / size, mode="valid")
    return round(float(sums.max()), 6)
