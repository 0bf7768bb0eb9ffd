"""Single steps that stand out from the steps around them: spikes, as a person sees them."""

from __future__ import annotations

from typing import Any

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Scalar, Table
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run, Signal
from firstbad.tools.window.around import SIGNALS, outcome_signal

SIDE = 10
"""Logged steps on each side that a step is held against."""
FEWEST = 12
"""Logged values from which on a signal is looked at."""
SCATTER = 1.4826
"""Times the median distance from the median: the standard deviation of normal noise."""
LARGEST = 999.0
"""Sizes are cut here: what is constant around a step has no scatter."""
LOOKED_AT = ("outcome", "kl", "entropy", "length", "loss", "norm")


class Sharp(Metrics):
    """By signal the step that stands out most from up to 10 logged steps on each side of it.

    `*_size` is its distance from their median over their scatter, `*_value` its value, `*_level`
    that median; None where the signal is logged in fewer than 12 steps.
    """

    outcome_size: float | None
    outcome_step: int | None
    outcome_value: float | None
    outcome_level: float | None
    kl_size: float | None
    kl_step: int | None
    kl_value: float | None
    kl_level: float | None
    entropy_size: float | None
    entropy_step: int | None
    entropy_value: float | None
    entropy_level: float | None
    length_size: float | None
    length_step: int | None
    length_value: float | None
    length_level: float | None
    loss_size: float | None
    loss_step: int | None
    loss_value: float | None
    loss_level: float | None
    norm_size: float | None
    norm_step: int | None
    norm_value: float | None
    norm_level: float | None


@tool
def find_sharp_steps(run: Run) -> Measured[Sharp]:
    """The step of each signal that stands out most from those around it, up or down.

    The scatter around a step is at least half of that of the whole signal around its running
    median, so that a quiet stretch makes no spike of noise.

    Cannot tell: a cause; a spike that lasts longer than about 10 logged steps, which is a level.
    """
    logged = {name: run.signals.get(SIGNALS[name]) for name in LOOKED_AT if name in SIGNALS}
    logged["outcome"] = outcome_signal(run) or run.signals.get(SIGNALS["reward"])
    measured: dict[str, Any] = {}
    rows: list[tuple[Scalar, ...]] = []
    for name in LOOKED_AT:
        signal = logged[name]
        found = _sharpest(signal) if signal is not None else None
        ends = ("step", "value", "level", "size")
        measured |= {f"{name}_{end}": found[i] if found else None for i, end in enumerate(ends)}
        if signal is not None and found:
            rows.append((found[0], signal.source_key, *found[1:]))
    if not rows:
        raise NoData(f"no signal is logged in {FEWEST} steps")
    top = max(rows, key=lambda row: float(row[-1] or 0))
    text = (
        f"`{top[1]}` stands out most, at step {top[0]}: {number(top[2])} where the steps around it "
        f"have {number(top[3])}, {number(top[4], digits=2)} times their scatter"
    )
    columns = ("step", "signal", "value", "median around it", "times the scatter")
    table = Table(title="steps that stand out most", columns=columns, rows=tuple(rows))
    window = (int(run.signals.steps[0]), int(run.signals.steps[-1]))
    return Measured(Sharp(**measured), text, tables=(table,), window=window)


def _sharpest(signal: Signal) -> tuple[int, float, float, float] | None:
    """Step, value, median around it and distance in scatters of the step that stands out most."""
    finite = np.isfinite(signal.values)
    steps, values = signal.steps[finite], signal.values[finite]
    if len(values) < FEWEST:
        return None
    around = _around(values)
    levels = np.nanmedian(around, axis=1)
    distances = np.abs(values - levels)
    least = SCATTER * float(np.median(distances)) / 2
    scatters = SCATTER * np.nanmedian(np.abs(around - levels[:, None]), axis=1)
    scatters = np.maximum(scatters, least)
    scatters = np.maximum(scatters, distances / LARGEST)  # 0 where all values are the same
    sizes = np.divide(distances, scatters, out=np.zeros(len(values)), where=distances > 0)
    i = int(np.argmax(sizes))
    return (
        int(steps[i]),
        round(float(values[i]), 6),
        round(float(levels[i]), 6),
        round(float(sizes[i]), 3),
    )


def _around(values: FloatArray) -> FloatArray:
    """(N, 2 SIDE) values on each side of each one; NaN beyond the ends."""
    padded = np.pad(values, SIDE, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * SIDE + 1)
    return np.delete(windows, SIDE, axis=1)
