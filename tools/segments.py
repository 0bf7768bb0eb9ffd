"""How far the settings on file speak: a run that was resumed may have had others before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.registry import Measured
from firstbad.tools.run import IntArray, Run


class HeldToSettings(Dated):
    """Metrics of a tool that compares a run with its settings."""

    settings_from_step: int | None = None
    """A resume from which on the run was measured: before it, it does not follow the settings on
    file, which are those of the last launch."""


F = TypeVar("F", bound=Callable[..., Measured[Any]])
OF_THE_BATCH = (
    "generation_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "per_device_train_batch_size",
    "steps_per_generation",
)
OF_THE_UPDATES = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
OF_THE_ADVANTAGE = ("num_generations", "reward_weights", "scale_rewards")
OF_THE_LOSS = (
    *OF_THE_BATCH,
    *OF_THE_ADVANTAGE,
    "beta",
    "entropy_coef",
    "loss_type",
    "max_completion_length",
)
OPENING_SHARE, OPENING_STEPS = 0.1, 5
"""What differs from the first step of a segment on need not show in its very first steps."""


def held_to_settings(*names: str) -> Callable[[F], F]:
    """For a tool that compares a run with settings `names`: hold each step to its own.

    One file of settings is left of a run, that of its last launch. Where a difference is there from
    the beginning, and gone from a resume on, the settings were others before it; then the tool's
    result from that resume on is the result, and `settings_from_step` says so. A difference that
    begins inside a segment, or at a resume, or that outlasts it, stays; so does one where every
    launch states the same of `names`.
    """

    def held(function: F) -> F:
        @wraps(function)
        def measure(run: Run, **arguments: object) -> Measured[HeldToSettings]:
            whole = function(run, **arguments)
            first = whole.metrics.first_bad_step
            if first is None:
                return whole
            stated = run.config.changed
            changed = stated is not None and not stated.isdisjoint(names)
            if stated is not None and not changed:
                return whole
            for step in resumes(run):
                if first >= step or not (changed or _opens(run, first, step)):
                    continue
                try:
                    later = function(since(run, step), **arguments)
                except NoData as short:
                    if not changed:
                        continue
                    raise NoData(f"other settings until step {step}, and then: {short}") from None
                if not later.metrics.from_start:
                    return _from(later, step)
            return whole

        return cast(F, measure)

    return held


def resumes(run: Run) -> list[int]:
    """Steps at which the run was resumed, in order."""
    return sorted({e.step for e in run.events if e.kind == "resume" and e.step is not None})


def launch_steps(run: Run, steps: IntArray) -> IntArray:
    """(S,) first step of the launch that each of these steps was trained in; 1 at least."""
    begins = np.unique([1, *resumes(run)])
    at = np.searchsorted(begins, steps, side="right") - 1
    found: IntArray = np.maximum(begins[np.maximum(at, 0)], 1)
    return found


def stated_from(run: Run, *names: str) -> int | None:
    """Step from which the settings on file speak, where launches state different `names`.

    None where they speak for all steps, as far as is known.
    """
    changed = run.config.changed
    if changed is None or changed.isdisjoint(names):
        return None
    return max(resumes(run), default=None)


def since(run: Run, step: int) -> Run:
    """The run without what lies before a step; rollouts and captures are shared."""
    kept = {
        field.name: vars(run)[field.name] for field in fields(Run)
    }  # asks a watched run nothing
    for name in ("signals", "rollouts", "captures"):
        kept[name] = kept[name].since(step)
    return Run(**kept)


def _opens(run: Run, first: int, resume: int) -> bool:
    """Whether a step is one of the first of those before a resume."""
    start = min([resume, *run.signals.steps.tolist(), *run.rollouts.steps.tolist()])
    return bool(first < start + max(OPENING_STEPS, OPENING_SHARE * (resume - start)))


def _from(later: Measured[HeldToSettings], step: int) -> Measured[HeldToSettings]:
    metrics = later.metrics.model_copy(update={"settings_from_step": step})
    told = f"{later.summary}; from the resume at step {step} on, since the steps before it do not "
    return replace(later, metrics=metrics, summary=told + "follow these settings")
