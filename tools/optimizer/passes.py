"""How far ratios drift from update to update over one batch of rollouts."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import IntArray, Run, Signal
from firstbad.tools.updates import first_updates, updates_per_batch

FEWEST = 3
"""Batches that must have been trained as often."""


class Passes(Metrics):
    """Ratios and clip hits by how often the batch was updated before; medians over the batches."""

    updates_per_batch: int
    n_batches: int
    """Batches that were trained that often, each update logged; 0 for one update per batch, where
    there is nothing to measure."""
    clip_second: float | None
    """Share of the tokens that are clipped in the second update on a batch; 0 in the first."""
    clip_last: float | None
    """... and in the last."""
    tail_second: float | None
    """Largest abs(log-ratio) of the step in the second update, nats."""
    tail_last: float | None
    """... and in the last."""
    p99_second: float | None
    """abs(log) of the ratio that one in a hundred tokens exceeds, in the second update, nats; where
    a recorder keeps the ledger of micro-batches."""
    p99_last: float | None
    """... and in the last."""


@tool
def measure_passes(run: Run) -> Measured[Passes]:
    """Clip fraction and largest log-ratio from the second to the last update over one batch.

    Each update moves the policy away from the one that sampled, so both grow over a batch; where
    the last update clips a large share, the batch has been used up before it.

    Cannot tell: which pass did the damage; anything where several updates share a logged row.
    """
    clip = run.signals.get("clip_frac_total")
    high, low = run.signals.get("ratio_max"), run.signals.get("ratio_min")
    steps = next((s.steps for s in (clip, high) if s is not None), None)
    updates = updates_per_batch(run)
    if steps is None:
        raise NoData("neither clip fraction nor ratios are logged")
    if updates is None or updates != int(updates):
        raise NoData("how many updates a batch gets is not known")
    if updates < 2:
        return Measured(_once(), "each batch of rollouts is trained once")
    first = first_updates(run, steps)
    begins = np.array([s.step for s in run.flight if s.first_pass], np.int64)  # a recorder's word
    if first is not None and not len(begins):
        begins = steps[first]
    if not len(begins) or (run.config.number("logging_steps") or 1) > 1:
        raise NoData("which update over its batch a logged step is, is not known")
    starts = _whole_batches(steps, begins, int(updates))
    if len(starts) < FEWEST:
        raise NoData(f"fewer than {FEWEST} batches of {int(updates)} logged updates")
    rows = [
        (
            at + 1,
            _median(clip, starts + at),
            _tail(high, low, starts + at),
            _ledger(run, starts + at),
        )
        for at in range(int(updates))
    ]
    metrics = Passes(
        updates_per_batch=int(updates),
        n_batches=len(starts),
        clip_second=rows[1][1],
        clip_last=rows[-1][1],
        tail_second=rows[1][2],
        tail_last=rows[-1][2],
        p99_second=rows[1][3],
        p99_last=rows[-1][3],
    )
    parts = []
    if metrics.clip_last is not None and metrics.clip_second is not None:
        parts.append(
            f"the share of clipped tokens goes from {percent(metrics.clip_second)} in the second "
            f"to {percent(metrics.clip_last)} in the last"
        )
    if metrics.tail_last is not None and metrics.tail_second is not None:
        parts.append(
            f"the largest log-ratio from {number(metrics.tail_second, digits=2)} to "
            f"{number(metrics.tail_last, digits=2)} nats"
        )
    return Measured(
        metrics,
        f"of {int(updates)} updates over each of {len(starts)} batches " + ", ".join(parts),
        tables=(
            Table(
                title="by update over the batch",
                columns=("update", "clip fraction", "largest log-ratio", "P99 of the log-ratio"),
                rows=tuple(rows[:40]),
                cut_rows=max(0, len(rows) - 40),
            ),
        ),
        window=(int(steps[0]), int(steps[-1])),
    )


def _once() -> Passes:
    return Passes(
        updates_per_batch=1,
        n_batches=0,
        clip_second=None,
        clip_last=None,
        tail_second=None,
        tail_last=None,
        p99_second=None,
        p99_last=None,
    )


def _whole_batches(steps: IntArray, starts: IntArray, updates: int) -> IntArray:
    """Steps that begin a batch of which each update is logged, and that end with the next batch."""
    logged, begins = set(steps.tolist()), starts.tolist()
    whole = [
        step
        for step, after in zip(begins, [*begins[1:], begins[-1] + updates], strict=True)
        if after - step >= updates and logged.issuperset(range(step, step + updates))
    ]
    return np.array(whole, np.int64)


def _median(signal: Signal | None, steps: IntArray) -> float | None:
    found = [signal.at(step) for step in steps.tolist()] if signal is not None else []
    values = [value for value in found if value is not None]
    return round(float(np.median(values)), 6) if values else None


def _ledger(run: Run, steps: IntArray) -> float | None:
    """Median over the captured steps of the largest log of P99 of their micro-batches."""
    tails = []
    for step in steps.tolist():
        if step in run.flight.steps:
            ratios = [m.ratio_p99 for m in run.flight.at(step).microbatches]
            logs = [abs(float(np.log(r))) for r in ratios if r is not None and r > 0]
            tails += [max(logs)] if logs else []
    return round(float(np.median(tails)), 6) if tails else None


def _tail(high: Signal | None, low: Signal | None, steps: IntArray) -> float | None:
    """Median over the steps of the largest abs(log-ratio)."""
    tails = []
    for step in steps.tolist():
        ends = [s.at(step) for s in (high, low) if s is not None]
        logs = [abs(float(np.log(end))) for end in ends if end is not None and end > 0]
        if logs:
            tails.append(max(logs))
    return round(float(np.median(tails)), 6) if tails else None
