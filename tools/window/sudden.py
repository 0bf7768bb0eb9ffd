"""A change of the sampled text from one step to the next, and what on record explains it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.records.prompts import prompts_of_groups
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run
from firstbad.tools.segments import resumes
from firstbad.tools.updates import updates_per_batch
from firstbad.tools.window.first_bad import SHORTEST, Move, find_move, watched

OF_THE_TEXT = ("entropy", "length")
"""Families of signals that follow what is sampled, whatever the reward makes of it."""
NEAR = 10
"""Batches on each side whose prompts are compared."""
SURE = 4.0
"""Standard errors from which on prompts are others than before."""


class Sudden(Dated):
    """The first lasting move of entropy or length that is no drift; the onset is its step."""

    n_signals: int
    found: bool
    signal_is_entropy: bool | None
    before: float | None
    after: float | None
    moved_share: float | None
    """Size of the move over the level before."""
    at_once_share: float | None
    """Of the move: between the last step before and the first one after."""
    n_updates: float | None
    """Updates of the weights between the two rollout batches."""
    at_resume: bool
    prompts_changed: bool | None
    """Prompts differ in length or words between the ten batches on both sides; None: unknown."""
    explained: bool
    """By other prompts, or by a resume, phase or changed setting at that step. A resume that is
    known to have changed no setting explains nothing."""


@tool
def find_sudden_change(run: Run) -> Measured[Sudden]:
    """Entropy or length that leaves its band, how much of the move one step makes, and why it may.

    Learning moves the sampled text as far as the weights move: little by little. What moves it from
    one step to the next comes from outside: other prompts, another sampler, other weights.

    Cannot tell: prompts that look alike and are harder; a change of the sampler from the first step
    on, or so small that the signals stay in their bands.
    """
    signals = [
        (s, w) for s, w in watched(run) if w.family in OF_THE_TEXT and len(s.steps) >= SHORTEST + 3
    ]
    if not signals:
        raise NoData(f"no entropy or length of at least {SHORTEST + 3} steps")
    moves = [
        (move, s.values[np.searchsorted(s.steps, [move.last_good, move.first_bad])])
        for s, w in signals
        if (move := find_move(s, w)) is not None and move.manner == "abrupt"
    ]
    if not moves:
        nothing = Sudden(
            n_signals=len(signals),
            found=False,
            signal_is_entropy=None,
            before=None,
            after=None,
            moved_share=None,
            at_once_share=None,
            n_updates=None,
            at_resume=False,
            prompts_changed=None,
            explained=False,
        )
        return Measured(nothing, "neither entropy nor length leaves its band at one step")
    move, ends = min(moves, key=lambda m: (m[0].first_bad, -_share(m[0])))
    changed = _prompts_changed(run, move.first_bad)
    at_resume = any(abs(step - move.first_bad) <= 1 for step in resumes(run))
    other_settings = at_resume and run.config.changed != frozenset()
    announced = any(
        e.kind in ("phase", "config_change")
        and e.step is not None
        and abs(e.step - move.first_bad) <= 1
        for e in run.events
    )
    metrics = Sudden(
        n_signals=len(signals),
        found=True,
        signal_is_entropy=move.family == "entropy",
        before=round(move.before, 4),
        after=round(move.after, 4),
        moved_share=round(_share(move), 4),
        at_once_share=round(abs(float(ends[1] - ends[0])) / abs(move.after - move.before), 4),
        n_updates=max(float(move.first_bad - move.last_good), updates_per_batch(run) or 1.0),
        at_resume=at_resume,
        prompts_changed=changed,
        explained=bool(changed or other_settings or announced),
        last_good_step=move.last_good,
        first_bad_step=move.first_bad,
    )
    return Measured(
        metrics,
        f"`{move.signal}` goes from {number(move.before, digits=3)} to "
        f"{number(move.after, digits=3)} at step {move.first_bad}, "
        f"{percent(min(1.0, metrics.at_once_share or 0.0))} of it at once",
        window=(move.last_good, move.first_bad),
        signal=move.signal,
    )


def _share(move: Move) -> float:
    return abs(move.after - move.before) / max(abs(move.before), 1e-9)


def _prompts_changed(run: Run, step: int) -> bool | None:
    """Whether prompts get other in length, or hold more new words, from a step on."""
    steps = run.rollouts.steps
    sides = [steps[steps < step][-2 * NEAR :], steps[steps >= step][:NEAR]]
    asked = [[prompts_of_groups(b) for b in run.rollouts.batches(side)] for side in sides]
    if len(asked[0]) < 4 or len(asked[1]) < 2:
        return None
    long_ago, before, after = asked[0][:-NEAR], asked[0][-NEAR:], asked[1]
    if any(_differ(_flat(before, size), _flat(after, size)) for size in (_words, len)):
        return True
    known = {word for batch in long_ago for prompt in batch for word in prompt.split()}
    usual = _new_words(before, known) if known else 0.0
    known |= {word for batch in before for prompt in batch for word in prompt.split()}
    return _new_words(after, known) > 0.1 + 2 * usual


def _words(prompt: str) -> int:
    return len(prompt.split())


def _flat(batches: Sequence[Sequence[str]], size: Callable[[str], int]) -> FloatArray:
    return np.array([float(size(prompt)) for batch in batches for prompt in batch])


def _differ(before: FloatArray, after: FloatArray) -> bool:
    gap = abs(float(after.mean() - before.mean()))
    error = math.sqrt(before.var() / len(before) + after.var() / len(after))
    return gap > max(SURE * error, 1e-9)


def _new_words(batches: Sequence[Sequence[str]], known: set[str]) -> float:
    words = [word for batch in batches for prompt in batch for word in prompt.split()]
    return float(np.mean([word not in known for word in words])) if words else 0.0
