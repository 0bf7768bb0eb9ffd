"""Signs of the process beside the curves: how long the phases of a step take, how busy GPUs are."""

from __future__ import annotations

import re

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Scalar, Table
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run, Signal

SPAN = 30
"""Steps on each side."""
FEWEST = 3
"""Values that a side needs."""
WHOLE = ("step_time", "gpu_util", "throughput", "staleness")
OTHERS = re.compile(
    r"(?:^|[^a-z])(?:gpu|cpu|ram|mem(?:ory)?|queue|backlog|pending|inflight|in_flight|workers?)"
    r"(?:[^a-z]|$)",
    re.I,
)
"""Names of further signs, as trackers and trainers log them under keys of their own."""


class ProcessSigns(Metrics):
    """Medians before and after a step."""

    n_signs: int
    step_time_factor: float | None
    """Time of a step, after over before."""
    gpu_util_before: float | None
    """Percent."""
    gpu_util_after: float | None
    throughput_factor: float | None
    phase_seconds_gained: float | None
    """Seconds by which the phase that grew most became longer."""
    phase_share: float | None
    """... of the seconds by which the step became longer."""
    events_at_change: int
    """Resumes, errors, phase and configuration changes within three steps of the change."""


@tool
def read_process_signs(
    run: Run, *, before: int | None = None, after: int | None = None
) -> Measured[ProcessSigns]:
    """Time of a step and of its phases, GPU use and throughput on both sides of a change.

    Memory, processors, queues and workers are shown where keys of the log name them.

    Medians of up to 30 steps a side; without steps given, of the first and last third. They tell
    where to look and set no window: a step may take longer for many harmless reasons.

    Cannot tell: what happened between two logged steps.
    """
    signals = {name: s for name in WHOLE if (s := run.signals.get(name)) is not None}
    phases = run.signals.under("phase_seconds")
    rows: list[tuple[Scalar, ...]] = []
    medians: dict[str, tuple[float, float]] = {}
    others = {n: s for n, s in run.signals.unknown.items() if OTHERS.search(n)}
    every = {**signals, **{f"phase {n}": s for n, s in phases.items()}, **others}
    for name, signal in every.items():
        sides = _sides(signal, before, after)
        if sides is not None:
            medians[name] = sides
            rows.append((signal.source_key, signal.unit, *(float(f"{x:.4g}") for x in sides)))
    if not rows:
        raise NoData("no step time, phase time, GPU use or throughput logged on both sides")
    step = medians.get("step_time")
    gained = {
        n.removeprefix("phase "): b - a for n, (a, b) in medians.items() if n.startswith("phase ")
    }
    most = max(gained, key=lambda n: gained[n], default=None)
    longer = None if step is None else step[1] - step[0]
    at = after if after is not None else before
    steps = [] if at is None else [e.step - at for e in run.events if e.step is not None]
    gpu = medians.get("gpu_util")
    metrics = ProcessSigns(
        n_signs=len(rows),
        step_time_factor=_factor(step),
        gpu_util_before=None if gpu is None else round(gpu[0], 2),
        gpu_util_after=None if gpu is None else round(gpu[1], 2),
        throughput_factor=_factor(medians.get("throughput")),
        phase_seconds_gained=None if most is None else round(gained[most], 4),
        phase_share=round(gained[most] / longer, 4) if most and longer and longer > 0 else None,
        events_at_change=sum(abs(away) <= 3 for away in steps),
    )
    told = [f"{number(a, digits=3)} -> {number(b, digits=3)} {n}" for n, (a, b) in medians.items()]
    return Measured(
        metrics,
        "; ".join(told[:4]) + (f"; {len(told) - 4} more" if len(told) > 4 else ""),
        tables=(
            Table(
                title="process signs",
                columns=("signal", "unit", "median before", "median after"),
                rows=tuple(rows[:40]),
                cut_rows=max(0, len(rows) - 40),
            ),
        ),
        quote="" if most is None else f"Most of it is `{_plain(most)}`.",
    )


def _sides(signal: Signal, before: int | None, after: int | None) -> tuple[float, float] | None:
    """Medians of the two sides, or None where one has too few values."""
    steps, values = signal.steps, signal.values
    if before is None and after is None:
        third = len(values) // 3
        early, late = values[:third], values[len(values) - third :]
    else:
        limit = before if before is not None else (after or 0) - 1
        early = values[steps <= limit][-SPAN:]
        late = values[steps >= (after if after is not None else limit + 1)][:SPAN]
    if min(len(early), len(late)) < FEWEST:
        return None
    return float(np.median(early)), float(np.median(late))


def _plain(name: str) -> str:
    """A name from the log, fit to be quoted."""
    return "".join(c for c in name if c.isprintable() and c != "`")[:60]


def _factor(sides: tuple[float, float] | None) -> float | None:
    return None if sides is None or sides[0] <= 0 else round(sides[1] / sides[0], 4)
