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
APART, FEWEST = 0.9, 20
"""Chance that a prompt of the steps from one on is longer than one of those before it (or shorter)
from which they are of another kind; and different prompts that each side must have. Prompts drawn
from one mix stay near 0.5 whatever their spread."""
ALIKE = 0.8
"""... below which the two halves of a side are of one kind: above it, prompts drift there."""
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
    apart: float | None
    """Largest chance that a prompt of ten steps is longer, or shorter, than one of the ten before;
    None with less than 20 prompts on a side."""
    n_changes: int
    """Steps at which prompts change for good."""
    changed: bool
    steps_off: int | None
    """Steps between that change and the step that was asked about; None without either."""


@tool
def compare_prompts(
    run: Run, *, at_step: int | None = None, sds: float = SDS, share: float = SHARE
) -> Measured[Prompts]:
    """A lasting change of the prompt mix, and how far it lies from another change.

    The mix is followed by the mean number of words and of characters per prompt; a change counts
    when the levels differ by more than `sds` spreads of a step and by more than `share`. It also
    counts where nearly every prompt of the next ten steps is longer, or shorter, than those of the
    ten before: phases that follow each other widen the spread of both sides.

    Cannot tell: a change of difficulty between prompts that look alike.
    """
    batches = list(run.rollouts.batches())
    if not batches:
        raise NoData("no rollouts with their prompts")
    w, characters = _sizes(batches)
    steps = [b.step for b in batches]
    at, spreads, changed = _change(w, characters, sds, share)
    parted, apart = _parted(batches)
    if parted and not changed:
        at, changed = parted[0], True
    fresh = None
    if at is not None:
        old = {t for b in batches[:at] for p in set(b.prompts) for t in p.split()}
        new = [t for b in batches[at:] for p in set(b.prompts) for t in p.split()]
        fresh = round(float(np.mean([t not in old for t in new])), 6) if new else None
    bad = changed and at is not None
    first, last = _beside(parted, at, len(batches)) if at is not None else (0, len(batches))
    distinct = len({p for b in batches for p in b.prompts})
    metrics = Prompts(
        n_steps=len(batches),
        n_distinct=distinct,
        shift_sds=round(min(spreads, 1e6), 4),
        words_before=round(float(w[first:at].mean()), 3) if at else None,
        words_after=round(float(w[at:last].mean()), 3) if at else None,
        new_words_share=fresh,
        apart=apart,
        n_changes=len({*parted, *([at] if changed and at not in parted else [])}),
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
        if others := [steps[i] for i in parted if i != at]:
            text += f", and at step {', '.join(map(str, others))}"
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
    told = [steps[i] for i in parted] or ([steps[at]] if bad and at else [])
    return Measured(
        metrics,
        text,
        tables=(table,) if table.rows else (),
        signal="mix of prompts",
        quote=f"They change at step {', '.join(map(str, told))}." if told else "",
    )


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


def prompt_changes(batches: list[RolloutBatch]) -> list[int]:
    """Indices of the batches from which on prompts are others for good, in order."""
    if not batches:
        return []
    parted, _ = _parted(batches)
    at, _, changed = _change(*_sizes(batches), SDS, SHARE)
    near = at is None or any(abs(at - i) <= BESIDE for i in parted)
    return sorted([*parted, *([at] if changed and at is not None and not near else [])])


def _parted(batches: list[RolloutBatch]) -> tuple[list[int], float | None]:
    """Batches at which prompts of another length begin, and the largest chance: see `APART`."""
    words: dict[str, int] = {}
    asked: list[dict[str, int]] = []
    for batch in batches:
        here = set(batch.prompts)
        words |= {p: len(p.split()) for p in here - words.keys()}
        asked.append({p: words[p] for p in here})

    def sides(i: int) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        return asked[max(0, i - BESIDE) : i], asked[i : i + BESIDE]

    chances = {
        i: chance
        for i in range(AROUND, len(asked) - AROUND + 1)
        if (chance := _apart(*sides(i), fewest=FEWEST)) is not None
    }
    found: list[int] = []
    for i in sorted((i for i, c in chances.items() if c >= APART), key=lambda i: -chances[i]):
        near = range(max(AROUND, i - AROUND), min(i + AROUND, len(asked) - 1) + 1)
        at = max(near, key=lambda j: _apart(*sides(j)) or 0.0)
        drift = max(_apart(s[: len(s) // 2], s[len(s) // 2 :]) or 0.0 for s in sides(i))
        if drift < ALIKE and all(abs(at - other) > AROUND for other in found):
            found.append(at)
    return sorted(found), round(max(chances.values()), 4) if chances else None


def _apart(
    before: list[dict[str, int]], after: list[dict[str, int]], *, fewest: int = 1
) -> float | None:
    """Chance, of 0.5 to 1, that a prompt of one side has more words than one of the other.

    A prompt that is asked again counts once: a few that come round are no phase. None with fewer
    prompts on a side.
    """
    sides: list[dict[str, int]] = [{}, {}]
    for side, asked in zip(sides, (before, after), strict=True):
        for prompts in asked:
            side |= prompts
    if min(map(len, sides)) < fewest:
        return None
    old, new = np.sort(list(sides[0].values())), np.array(list(sides[1].values()))
    below = np.searchsorted(old, new, "left") + np.searchsorted(old, new, "right")
    longer = float(below.mean()) / (2 * len(old))
    return max(longer, 1 - longer)


def _beside(parted: list[int], at: int, n: int) -> tuple[int, int]:
    """First batch of the stretch before a change, and the end of the one after it."""
    return (
        max((i for i in parted if i < at), default=0),
        min((i for i in parted if i > at), default=n),
    )


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
