"""Is the policy after a resume the one before it?"""

from __future__ import annotations

import math

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.prompts import prompts_of_groups
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run, Signal
from firstbad.tools.segments import resumes

BEFORE, OPENING = 10, 5
"""Steps before a resume that its first step is compared with, and steps the run began with."""
AWAY = 2.0
"""Spreads of those steps that reward and entropy must both have left them by."""
SURE = 4.0
"""Both together, in standard deviations, from which on a return is dated."""


class ResumeHolds(Dated):
    """The first step after a resume, whose rollouts come from the policy that was loaded."""

    n_resumes: int
    """Resumes with ten steps before them."""
    return_sds: float
    """How far reward and entropy, both, go back at once towards where the run began, in standard
    deviations of the ten steps before; the most of all resumes, 0 where either does not."""
    length_sds: float | None
    """Size of the move of the mean completion length there."""


@tool
def compare_resumes(run: Run) -> Measured[ResumeHolds]:
    """Reward and entropy in the first step after each resume, against the ten steps before it.

    No update lies between, so both stay where they were, unless the weights that were loaded are
    others. Older weights bring both back towards where the run began. A verifier or a cap that
    changed at the resume moves the reward, but not the entropy that way; where prompts are of
    another length from there on, nothing is compared.

    Cannot tell: weights of a few steps earlier, whose figures are those of the last ones.
    """
    if not {"reward_mean", "entropy"} <= run.signals.known.keys():
        raise NoData("no logged reward and entropy to compare at a resume")
    every = resumes(run)
    found = [(step, *moved) for step in every if (moved := _at(run, step)) is not None]
    if every and not found:
        raise NoData("no resume with ten logged steps of reward and entropy before it")
    if not found:
        return Measured(ResumeHolds(n_resumes=0, return_sds=0.0, length_sds=0.0), "no resume")
    step, sds, length = max(found, key=lambda resume: resume[1])
    back = sds >= SURE
    reward = run.signals.get("reward_mean")
    before = [] if reward is None else [int(s) for s in reward.steps if s < step]
    metrics = ResumeHolds(
        n_resumes=len(found),
        return_sds=round(sds, 4),
        length_sds=None if length is None else round(length, 4),
        last_good_step=before[-1] if back and before else None,
        first_bad_step=step if back else None,
    )
    text = f"{len(found)} resumes; reward and entropy stay where they were"
    if back:
        text = (
            f"at the resume at step {step} reward and entropy go back at once towards where the "
            f"run began, by {sds:.1f} standard deviations together"
        )
    return Measured(
        metrics, text, sources=run.sources, window=(step, step), signal="reward and entropy"
    )


def _at(run: Run, step: int) -> tuple[float, float | None] | None:
    """How far reward and entropy go back at a resume, and how far the length moves; None: unknown.

    Spreads are those around a straight line, so that learning does not count as noise.
    """
    if _other_prompts(run, step):
        return 0.0, 0.0
    moves = [_move(run.signals.get(name), step) for name in ("reward_mean", "entropy")]
    length = _move(run.signals.get("completion_length_mean"), step)
    known = [move for move in moves if move is not None]
    if len(known) < 2:
        return None
    towards = [move * math.copysign(1.0, start) if start else 0.0 for move, start in known]
    both = sum(towards) / math.sqrt(2) if min(towards) >= AWAY else 0.0
    return both, None if length is None else abs(length[0])


def _move(signal: Signal | None, step: int) -> tuple[float, float] | None:
    """Move at a step and way back to the beginning, in spreads of the ten steps before."""
    if signal is None:
        return None
    before = signal.values[signal.steps < step][-BEFORE:]
    after = signal.values[signal.steps >= step][:1]
    if len(before) < BEFORE or not len(after) or np.sum(signal.steps < step) < BEFORE + OPENING:
        return None
    x = np.arange(BEFORE)
    line = np.polyfit(x, before, 1)
    spread = float(np.sqrt(np.sum((before - np.polyval(line, x)) ** 2) / (BEFORE - 2)))
    error = spread * math.sqrt(1 + 1 / BEFORE)
    if error <= 0:
        return None
    level = float(before.mean())
    return (float(after[0]) - level) / error, (
        float(signal.values[:OPENING].mean()) - level
    ) / error


def _other_prompts(run: Run, step: int) -> bool:
    """Whether the prompts of the first step are of another length than those of the ten before."""
    before = run.rollouts.steps[run.rollouts.steps < step][-BEFORE:]
    after = run.rollouts.steps[run.rollouts.steps >= step][:1]
    lengths = [
        float(np.mean([len(prompt) for prompt in prompts_of_groups(batch)]))
        for batch in run.rollouts.batches([*before.tolist(), *after.tolist()])
    ]
    if len(lengths) < BEFORE // 2:
        return False
    *old, new = lengths
    return abs(new - float(np.mean(old))) > 3 * max(float(np.std(old)), 0.01 * float(np.mean(old)))
