"""How long scoring takes, and how much of the time of a step that is."""

from __future__ import annotations

import math
import re

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, IntArray, RolloutBatch, Run, Signal
from firstbad.tools.stats import level_shift

FEWEST = 12
PHASE = re.compile(
    r"(?:train/)?(?:phase_seconds|timing(?:_s|_raw)?|time|perf|profiling)/.*"
    r"(?:reward|scor|verif|judge|grad(?:er|ing))",
    re.IGNORECASE,
)
"""Logged time of the scoring phase: verl's `timing_s/reward`, `_calculate_rewards` of TRL."""
LOWEST_SECONDS = 1e-6
STUCK = 10.0
"""Times the median of its step that a call takes which holds up the others."""


class ScoringTime(Dated):
    """Seconds of scoring per step, before and after the step at which they change most."""

    n_steps: int
    of_calls: bool
    """From the times of single calls; else from a logged phase."""
    seconds_before: float | None
    """Median; None where the two sides do not differ."""
    seconds_after: float | None
    factor: float
    """After over before; 1 where they do not differ."""
    seconds_all: float
    """Median of all steps."""
    share_of_step: float | None
    """Of the step time, median of all steps, or after the change; None where none is logged."""
    explains: float | None
    """Share of the change of the step time that scoring changed by; None where one of the two did
    not change, or no step time is logged."""
    stuck_share: float | None
    """Of steps: one call takes over ten times the median of the step and over half of the step's
    time. None without times of single calls and steps."""


@tool
def measure_scoring_time(run: Run) -> Measured[ScoringTime]:
    """Time that scoring takes per step: of single calls, or of the logged phase.

    Calls of one step are added up where the sum fits into the step time, since they then can have
    run one after another; else the longest one counts.

    Cannot tell: whether training waited for it; whether slow scores are right (see `rejudge`).
    """
    calls = [(b, t) for b in run.rollouts.batches() if (t := _calls(b)) is not None]
    phase = _phase(run)
    stuck = None
    if len(calls) >= FEWEST:
        steps, seconds, stuck = _of_calls(run, calls)
    elif phase is not None and len(phase.steps) >= FEWEST:
        steps, seconds = phase.steps, phase.values
    else:
        raise NoData("neither times of scoring calls nor a logged time of the scoring phase")
    shift = level_shift(np.log(np.maximum(seconds, LOWEST_SECONDS)), margin=5)
    changed = (
        shift is not None and shift.sds > 3 and abs(shift.after - shift.before) > math.log(1.5)
    )
    cut = shift.index if shift is not None and changed else None
    whole = run.signals.get("step_time")
    metrics = ScoringTime(
        n_steps=len(steps),
        of_calls=len(calls) >= FEWEST,
        seconds_before=None if cut is None else _median(seconds[:cut]),
        seconds_after=None if cut is None else _median(seconds[cut:]),
        factor=1.0
        if cut is None
        else _r(float(np.median(seconds[cut:])) / max(float(np.median(seconds[:cut])), 1e-9)),
        seconds_all=_median(seconds),
        share_of_step=_share(whole, steps, seconds, cut or 0),
        explains=None if cut is None else _explains(whole, steps, seconds, cut),
        stuck_share=stuck,
        last_good_step=None if cut is None else int(steps[cut - 1]),
        first_bad_step=None if cut is None else int(steps[cut]),
    )
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 60)).astype(int))
    table = Table(
        title="seconds of scoring per step",
        columns=("step", "seconds"),
        rows=tuple((int(steps[i]), _r(seconds[i])) for i in shown),
        cut_rows=len(steps) - len(shown),
    )
    text = f"scoring takes {number(metrics.seconds_all, digits=3)} s per step"
    if cut is not None:
        text = (
            f"scoring takes {number(metrics.seconds_before, digits=3)} s per step before step "
            f"{int(steps[cut])} and {number(metrics.seconds_after, digits=3)} s from it on"
        )
    if metrics.share_of_step is not None:
        text += f", {percent(metrics.share_of_step)} of the step time"
    return Measured(
        metrics,
        text,
        tables=(table,),
        window=(int(steps[0]), int(steps[-1])),
        signal="time of scoring",
    )


def _calls(batch: RolloutBatch) -> FloatArray | None:
    """(R,) seconds of all parts of each row, or None where no call was timed."""
    parts = [np.nan_to_num(seconds) for seconds in batch.latency_seconds.values()]
    timed = any(np.isfinite(seconds).any() for seconds in batch.latency_seconds.values())
    return np.sum(parts, axis=0) if timed and len(batch) else None


def _phase(run: Run) -> Signal | None:
    """The logged time of the scoring phase; of several the largest."""
    every = {**run.signals.unknown, **run.signals.known}
    found = [s for key, s in sorted(every.items()) if PHASE.match(key) and len(s.values)]
    return max(found, key=lambda s: float(np.median(s.values)), default=None)


def _of_calls(
    run: Run, calls: list[tuple[RolloutBatch, FloatArray]]
) -> tuple[IntArray, FloatArray, float | None]:
    """Steps, seconds of scoring of each, and the share of steps that one call holds up."""
    whole = run.signals.get("step_time")
    steps = np.array([batch.step for batch, _ in calls], np.int64)
    total, largest, usual = (
        np.array([float(of(seconds)) for _, seconds in calls]) for of in (np.sum, np.max, np.median)
    )
    step_time = np.array([np.nan if (t := _at(whole, s)) is None else t for s in steps.tolist()])
    seconds: FloatArray = np.where(total > step_time, largest, total)
    known = np.isfinite(step_time)
    stuck = (largest > STUCK * np.maximum(usual, LOWEST_SECONDS)) & (largest > step_time / 2)
    return steps, seconds, _r(float(stuck[known].mean())) if known.any() else None


def _at(signal: Signal | None, step: int) -> float | None:
    return None if signal is None else signal.at(step)


def _paired(
    whole: Signal | None, steps: IntArray, seconds: FloatArray
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Step times and seconds of the steps that have both, and their places."""
    times = np.array([np.nan if (t := _at(whole, s)) is None else t for s in steps.tolist()])
    both = np.flatnonzero(np.isfinite(times))
    return times[both], seconds[both], both


def _share(whole: Signal | None, steps: IntArray, seconds: FloatArray, cut: int) -> float | None:
    times, of_them, places = _paired(whole, steps, seconds)
    use = (places >= cut) & (times > 0)
    return _r(float(np.median(of_them[use] / times[use]))) if use.any() else None


def _explains(whole: Signal | None, steps: IntArray, seconds: FloatArray, cut: int) -> float | None:
    times, of_them, places = _paired(whole, steps, seconds)
    late = places >= cut
    if late.sum() < 3 or (~late).sum() < 3:
        return None
    rise = float(np.median(times[late]) - np.median(times[~late]))
    own = float(np.median(of_them[late]) - np.median(of_them[~late]))
    return _r(min(1.0, own / rise)) if rise > 0 else None


def _median(values: FloatArray) -> float:
    return _r(float(np.median(values)))


def _r(value: float) -> float:
    return round(float(value), 6)
