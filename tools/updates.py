"""How often a rollout batch is trained, and which logged steps make the first update on theirs."""

from __future__ import annotations

import numpy as np

from firstbad.tools.run import BoolArray, IntArray, Run
from firstbad.tools.segments import resumes


def updates_per_batch(run: Run) -> float | None:
    """Optimizer steps per rollout batch: steps per generation x passes / accumulation steps."""
    stated = run.config.number("updates_per_batch")
    accumulation = run.config.number("gradient_accumulation_steps")
    if stated or not accumulation:
        return stated
    return micro_batches_per_batch(run, accumulation) / accumulation


def micro_batches_per_batch(run: Run, accumulation: float) -> float:
    """Micro-batches that are trained before new rollouts are generated, all passes together."""
    per_generation = run.config.number("steps_per_generation") or accumulation
    return per_generation * (run.config.number("num_iterations") or 1.0)


def first_updates(run: Run, steps: IntArray) -> BoolArray | None:
    """(S,) logged steps that hold no update but the first one on their rollouts.

    Weights are then those that generated, and every ratio is 1. All steps where each batch is
    updated once; else by TRL's schedule, which begins anew at a resume, and by the rollouts: a step
    that repeats those of an earlier one is none. None where settings don't tell.
    """
    updates = updates_per_batch(run)
    if updates is None:
        return None
    if updates <= 1:
        return np.ones(len(steps), bool)
    accumulation = run.config.number("gradient_accumulation_steps")
    if run.config.number("updates_per_batch") or not accumulation or run.framework != "trl":
        return None
    period = micro_batches_per_batch(run, accumulation)
    begins = np.array([1, *resumes(run)])

    def first(step: int) -> bool:
        done = step - int(begins[begins <= step].max(initial=1))
        return done * accumulation % period == 0 and run.fresh_at(step)

    every = max(1, int(run.config.number("logging_steps") or 1))
    before = np.concatenate([[max(0, int(steps[0]) - every)], steps[:-1]]) if len(steps) else steps
    return np.array(
        [
            all(first(s) for s in range(a + 1, b + 1))
            for a, b in zip(before.tolist(), steps.tolist(), strict=True)
        ],
        bool,
    )


def mixes_batches(run: Run) -> bool:
    """Whether a logged row averages over more, or less, than the rollouts written beside it.

    With `logging_steps` above 1, or several batches in an update, TRL writes the rollouts of the
    last batch alone. They are all of the row where its steps train one batch as a whole: once or
    several times, and from its first step on, also after a resume.
    """
    every = run.config.number("logging_steps") or 1
    accumulation = run.config.number("gradient_accumulation_steps")
    updates = updates_per_batch(run)
    if every <= 1:
        return updates is not None and updates < 1
    if not updates or not accumulation or run.framework != "trl":
        return True
    a_pass = (run.config.number("steps_per_generation") or accumulation) / accumulation
    begins = [step - 1 for step in resumes(run)]
    return any(
        n % d != 0 for n, d in ((updates, every), (every, a_pass), *((b, every) for b in begins))
    )
