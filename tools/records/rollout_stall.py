"""Steps without rollouts of their own: does generation still feed training?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from firstbad.tools.drawn_again import may_be_drawn_again
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.updates import updates_per_batch


class RolloutStall(Dated):
    """Stretches of steps with the same rollouts; the onset is the first that is too long."""

    n_batches: int
    """Rollout batches that differ."""
    steps_per_batch: float
    """Steps that a batch may serve: by the settings, else as usual in this run (median)."""
    steps_longest: int
    """Steps in a row with the same rollouts, at most."""
    too_long: int
    """Of those: beyond what a batch may serve."""
    named_anew: bool
    """Other samples are named in its second step than in its first: drawn once more, or only named
    once more."""
    went_on: bool
    """New rollouts came after the longest stretch."""
    time_before: float | None
    """Median seconds per step before that stretch, and in what is too long of it; None where no
    time is logged."""
    time_in: float | None
    time_moved: float | None
    """abs(log2) of the ratio of the two: 1 where a step takes twice or half as long."""


@tool
def find_rollout_stall(run: Run) -> Measured[RolloutStall]:
    """Steps that repeat the rollouts of the steps before them, beyond the updates of a batch.

    One generation batch may serve several updates; then its rollouts are written under each of
    their steps. Where generation stops feeding, the last batch is trained on and on, or waited for.
    Few short texts come again by chance: there only names of samples tell, those of no other batch.

    Cannot tell: a job that hangs and writes no further step; rollouts that are made anew and lost;
    without names, a stall of a policy that has one answer to each prompt.
    """
    steps = run.rollouts.steps.tolist()
    if len(steps) < 5:
        raise NoData("fewer than 5 steps with rollouts")
    names = [b.sample for b in run.rollouts.batches()]  # reads them in order, repeats and all
    own_names = all(a is not None and a != b for a, b in pairwise(names))
    fresh = [run.fresh_at(step) or not _shown(run, step, own_names) for step in steps]
    stretches: list[list[int]] = []
    for step, new in zip(steps, fresh, strict=True):
        if new or not stretches:
            stretches.append([])
        stretches[-1].append(step)
    lengths = [s[-1] - s[0] + 1 for s in stretches]
    usual = updates_per_batch(run) or float(np.median(lengths))
    allowed = max(1, int(np.ceil(usual)))
    worst = int(np.argmax(lengths))
    longest = stretches[worst]
    beyond = max(0, lengths[worst] - allowed)
    over = [step for step in longest if step >= longest[0] + allowed]
    before, inside = _times(run, longest[0], over)
    first = next(
        (s[0] + allowed for s, n in zip(stretches, lengths, strict=True) if n > allowed), None
    )
    metrics = RolloutStall(
        n_batches=len(stretches),
        steps_per_batch=round(usual, 4),
        steps_longest=lengths[worst],
        too_long=beyond,
        named_anew=len(longest) > 1 and _names(run, longest[0]) != _names(run, longest[1]),
        went_on=worst < len(stretches) - 1,
        time_before=before,
        time_in=inside,
        time_moved=round(abs(float(np.log2(inside / before))), 4) if before and inside else None,
        last_good_step=None if first is None else first - 1,
        first_bad_step=first,
        last_bad_step=longest[-1] if beyond and worst < len(stretches) - 1 else None,
    )
    text = (
        f"{len(stretches)} rollout batches for {len(steps)} steps; at most {lengths[worst]} steps "
        f"in a row have the same, {allowed} may"
    )
    table = Table(
        title="steps in a row with the same rollouts",
        columns=("first step", "steps"),
        rows=tuple((s[0], n) for s, n in zip(stretches, lengths, strict=True) if n > allowed)[:20],
    )
    return Measured(
        metrics, text, tables=(table,) if table.rows else (), signal="rollouts of the steps"
    )


def _shown(run: Run, step: int, own_names: bool) -> bool:
    """Whether the same texts as before are the same rollouts, not drawn again by chance."""
    return own_names or not may_be_drawn_again(run.rollouts.batch(step))


def _names(run: Run, step: int) -> Sequence[str] | None:
    return run.rollouts.batch(step).sample


def _times(run: Run, begin: int, over: list[int]) -> tuple[float | None, float | None]:
    """Median step time before a stretch and in a part of it."""
    time = run.signals.get("step_time")
    if time is None or not over:
        return None, None
    before = time.values[time.steps < begin]
    inside = time.between(over[0], over[-1])
    if not len(before) or not len(inside):
        return None, None
    levels = float(np.median(before)), float(np.median(inside))
    return (levels[0], levels[1]) if min(levels) > 0 else (None, None)
