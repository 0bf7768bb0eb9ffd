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
AROUND, BESIDE = 5, 10
"""Steps from one on whose prompts are held against those of the steps before it."""
MORE_WORDS, MORE_PROMPTS = 0.1, 0.3
"""Shares of words, and of prompts, beyond the usual from which they are others."""


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
    steps_off: int | None
    """Steps between that change and the step that was asked about; None without either."""


@tool
def compare_prompts(
    run: Run, *, at_step: int | None = None, sds: float = SDS, share: float = SHARE
) -> Measured[Prompts]:
    """A lasting change of the prompt mix, and how far it lies from another change.

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
        steps_off=abs(steps[at] - at_step) if bad and at and at_step is not None else None,
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


def other_prompts_at(run: Run, step: int) -> bool | None:
    """Whether the prompts of the steps from this one on are others than those just before it.

    They are where the record names a phase that begins there, or where many more of their words, or
    of them, than usual did not occur in the steps before. None where they are not recorded.
    """
    steps = [int(s) for s in run.rollouts.steps]
    at = int(np.searchsorted(steps, step))
    if any(
        e.kind == "phase" and e.step is not None and abs(e.step - step) <= 1 for e in run.events
    ):
        return True
    if at < AROUND + 1 or at >= len(steps):
        return None
    asked = {
        s: prompts_of_groups(run.rollouts.batch(s))
        for s in steps[max(0, at - AROUND - BESIDE) : at + AROUND]
    }
    seen = list(asked)
    here = seen.index(steps[at])
    now, usual = (_fresh(asked, seen, i) for i in (here, here - AROUND))
    return now[0] > usual[0] + MORE_WORDS or now[1] > usual[1] + MORE_PROMPTS


def _fresh(asked: dict[int, list[str]], steps: list[int], at: int) -> tuple[float, float]:
    """Shares of the words, and of the prompts, of some steps that those before do not have."""
    before = {p for s in steps[max(0, at - BESIDE) : at] for p in asked[s]}
    words = {w for prompt in before for w in prompt.split()}
    now = [p for s in steps[at : at + AROUND] for p in asked[s]]
    said = [w for prompt in now for w in prompt.split()]
    fresh = float(np.mean([w not in words for w in said])) if said else 0.0
    return fresh, float(np.mean([p not in before for p in now])) if now else 0.0


def prompts_of_groups(batch: RolloutBatch) -> list[str]:
    """The prompt of each group, by its first row, in order of group."""
    return [batch.prompts[rows[0]] for rows in batch.members]


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
