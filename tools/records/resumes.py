"""Is the policy after a resume the one before it?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.records.prompts import prompts_of_groups
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
    reward_before: float | None
    """Mean of the ten steps before that resume, and the value of its first step; None without a
    resume."""
    reward_after: float | None
    entropy_before: float | None
    entropy_after: float | None
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
    found = [held for step in every if (held := _at(run, step)) is not None]
    if every and not found:
        raise NoData("no resume with ten logged steps before it, and prompts like theirs after it")
    if not found:
        return Measured(_metrics(None, 0), "no resume")
    worst = max(found, key=lambda held: held.return_sds)
    step, sds = worst.step, worst.return_sds
    back = sds >= SURE
    reward = run.signals.get("reward_mean")
    before = [] if reward is None else [int(s) for s in reward.steps if s < step]
    metrics = _metrics(worst, len(found)).model_copy(
        update={
            "last_good_step": before[-1] if back and before else None,
            "first_bad_step": step if back else None,
        }
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


@dataclass(frozen=True)
class _Move:
    """A signal at a resume; `sds` and `way_back` in spreads of the ten steps before."""

    before: float
    after: float
    sds: float
    way_back: float
    """From the level before to where the run began."""


@dataclass(frozen=True)
class _Held:
    """What reward, entropy and length do at one resume."""

    step: int
    reward: _Move
    entropy: _Move
    length: _Move | None

    @property
    def return_sds(self) -> float:
        """How far reward and entropy, both, go back towards where the run began."""
        moves = (self.reward, self.entropy)
        towards = [m.sds * math.copysign(1.0, m.way_back) if m.way_back else 0.0 for m in moves]
        return sum(towards) / math.sqrt(2) if min(towards) >= AWAY else 0.0


def _metrics(held: _Held | None, n_resumes: int) -> ResumeHolds:
    if held is None:
        return ResumeHolds(
            n_resumes=n_resumes,
            return_sds=0.0,
            reward_before=None,
            reward_after=None,
            entropy_before=None,
            entropy_after=None,
            length_sds=0.0,
        )
    return ResumeHolds(
        n_resumes=n_resumes,
        return_sds=round(held.return_sds, 4),
        reward_before=round(held.reward.before, 6),
        reward_after=round(held.reward.after, 6),
        entropy_before=round(held.entropy.before, 6),
        entropy_after=round(held.entropy.after, 6),
        length_sds=None if held.length is None else round(abs(held.length.sds), 4),
    )


def _at(run: Run, step: int) -> _Held | None:
    """The moves at a resume; None where reward or entropy is not known, or prompts changed.

    Spreads are those around a straight line, so that learning does not count as noise.
    """
    if _other_prompts(run, step):
        return None
    reward, entropy, length = (
        _move(run.signals.get(name), step)
        for name in ("reward_mean", "entropy", "completion_length_mean")
    )
    if reward is None or entropy is None:
        return None
    return _Held(step, reward, entropy, length)


def _move(signal: Signal | None, step: int) -> _Move | None:
    """Move of a signal at a step, against the ten steps before."""
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
    opening = float(signal.values[:OPENING].mean())
    return _Move(level, float(after[0]), (float(after[0]) - level) / error, opening - level)


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
