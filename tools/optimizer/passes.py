"""How far ratios drift from update to update over one batch of rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Scalar, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.optimizer.ledger_ratios import NONE, LedgerRatios, by_update, medians
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import IntArray, Run, Signal
from firstbad.tools.updates import first_updates, updates_per_batch

FEWEST = 3
"""Batches that must have been trained as often."""


class Passes(Metrics):
    """Ratios and clip hits by how often the batch was updated before; medians over the batches.

    Of the log, and where it has none of the ledger of micro-batches that a recorder keeps.
    """

    updates_per_batch: int
    n_batches: int
    """Batches that were trained that often, each update on record; 0 for one update per batch,
    where there is nothing to measure."""
    from_ledger: bool
    """No update is logged by itself: all figures are the ledger's."""
    clip_second: float | None
    """Share of the tokens that are clipped in the second update on a batch; 0 in the first. In the
    ledger: on both sides together, as its writer counts them."""
    clip_last: float | None
    """... and in the last."""
    clip_low_last: float | None
    """Of the ledger: share of the tokens clipped below in the last update ..."""
    clip_high_last: float | None
    """... and above."""
    tail_second: float | None
    """Largest abs(log-ratio) of the step in the second update, nats; of the ledger's largest ratio
    where no extremes are logged."""
    tail_last: float | None
    """... and in the last."""
    ratio_p50_last: float | None
    """Median ratio of the ledger in the last update."""
    ratio_p95_last: float | None
    """Ratio that one in twenty tokens exceeds there."""
    p99_second: float | None
    """abs(log) of the ratio that one in a hundred tokens exceeds, in the second update, nats; of
    the ledger."""
    p99_last: float | None
    """... and in the last."""
    ratio_max_last: float | None
    """Largest ratio of the ledger in the last update."""
    kl_old_last: float | None
    """KL to the policy before the batch in the last update, nats per token, of the ledger."""


@tool
def measure_passes(run: Run) -> Measured[Passes]:
    """Clip fraction and ratios from the second to the last update over one batch.

    Each update moves the policy away from the one that sampled, so both grow over a batch; where
    the last update clips a large share, the batch has been used up before it.

    Cannot tell: which pass did the damage; anything where several updates share a logged row and
    no ledger tells them apart.
    """
    updates = updates_per_batch(run)
    whole = int(updates) if updates is not None and updates == int(updates) else None
    starts, why = np.zeros(0, np.int64), None
    try:
        starts = _logged_batches(run, whole)
    except NoData as error:
        why = error
    ledger = by_update(run, whole, starts.tolist())
    n_ledger = min(map(len, ledger[1:]), default=0)
    if why is not None and n_ledger < FEWEST:
        raise why
    whole = len(ledger) if whole is None else whole
    if whole < 2:
        return Measured(_once(), "each batch of rollouts is trained once")
    clip = run.signals.get("clip_frac_total")
    high, low = run.signals.get("ratio_max"), run.signals.get("ratio_min")
    rows = [
        _Row(
            at + 1,
            _median(clip, starts + at),
            _tail(high, low, starts + at),
            medians(ledger[at]) if ledger else NONE,
        )
        for at in range(whole)
    ]
    second, last = rows[1], rows[-1]
    metrics = Passes(
        updates_per_batch=whole,
        n_batches=len(starts) or n_ledger,
        from_ledger=not len(starts),
        clip_second=second.clipped,
        clip_last=last.clipped,
        clip_low_last=last.ledger.clipped_low,
        clip_high_last=last.ledger.clipped_high,
        tail_second=second.tail,
        tail_last=last.tail,
        ratio_p50_last=last.ledger.p50,
        ratio_p95_last=last.ledger.p95,
        p99_second=_log(second.ledger.p99),
        p99_last=_log(last.ledger.p99),
        ratio_max_last=last.ledger.largest,
        kl_old_last=last.ledger.kl_old,
    )
    return Measured(
        metrics,
        f"of {whole} updates over each of {metrics.n_batches} batches " + ", ".join(_told(metrics)),
        tables=(
            Table(
                title="by update over the batch",
                columns=(
                    "update", "clip fraction", "largest log-ratio", "ratio P50", "P95", "P99",
                    "largest", "clipped below", "clipped above", "KL to old",
                ),
                rows=tuple(row.cells for row in rows[:40]),
                cut_rows=max(0, len(rows) - 40),
            ),
        ),
        window=(int(run.signals.steps[0]), int(run.signals.steps[-1]))
        if len(run.signals.steps)
        else None,
    )  # fmt: skip


@dataclass(frozen=True)
class _Row:
    """One update over the batch: what is logged, and what the ledger says."""

    update: int
    logged_clip: float | None
    logged_tail: float | None
    ledger: LedgerRatios

    @property
    def clipped(self) -> float | None:
        own = self.ledger.clipped
        return self.logged_clip if own is None or self.logged_clip is not None else round(own, 6)

    @property
    def tail(self) -> float | None:
        own = _log(self.ledger.largest)
        return own if self.logged_tail is None else self.logged_tail

    @property
    def cells(self) -> tuple[Scalar, ...]:
        own = self.ledger
        ratios = (own.p50, own.p95, own.p99, own.largest)
        sides = (own.clipped_low, own.clipped_high, own.kl_old)
        return (self.update, self.clipped, self.tail, *ratios, *sides)


def _told(m: Passes) -> list[str]:
    parts = []
    if m.clip_last is not None and m.clip_second is not None:
        parts.append(
            f"the share of clipped tokens goes from {percent(m.clip_second)} in the second "
            f"to {percent(m.clip_last)} in the last"
        )
    if m.tail_last is not None and m.tail_second is not None:
        parts.append(
            f"the largest log-ratio from {number(m.tail_second, digits=2)} to "
            f"{number(m.tail_last, digits=2)} nats"
        )
    if m.clip_low_last is not None and m.clip_high_last is not None:
        parts.append(
            f"of the last {percent(m.clip_low_last)} are clipped below and "
            f"{percent(m.clip_high_last)} above"
        )
    return parts


def _log(ratio: float | None) -> float | None:
    return None if ratio is None or ratio <= 0 else round(abs(float(np.log(ratio))), 6)


def _once() -> Passes:
    nothing: dict[str, Any] = dict.fromkeys(Passes.model_fields)
    return Passes(**{**nothing, "updates_per_batch": 1, "n_batches": 0, "from_ledger": False})


def _logged_batches(run: Run, updates: int | None) -> IntArray:
    """Steps that begin a batch of which each update is logged; empty for one update per batch.

    Raises:
        NoData: which update over its batch a logged step is, is not known.
    """
    logged = (run.signals.get(name) for name in ("clip_frac_total", "ratio_max"))
    steps = next((s.steps for s in logged if s is not None), None)
    if steps is None:
        raise NoData("neither clip fraction nor ratios are logged")
    if updates is None:
        raise NoData("how many updates a batch gets is not known")
    if updates < 2:
        return np.zeros(0, np.int64)
    first = first_updates(run, steps)
    begins = np.array([s.step for s in run.flight if s.first_pass], np.int64)  # a recorder's word
    if first is not None and not len(begins):
        begins = steps[first]
    if not len(begins) or (run.config.number("logging_steps") or 1) > 1:
        raise NoData("which update over its batch a logged step is, is not known")
    starts = _whole_batches(steps, begins, updates)
    if len(starts) < FEWEST:
        raise NoData(f"fewer than {FEWEST} batches of {updates} logged updates")
    return starts


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


def _tail(high: Signal | None, low: Signal | None, steps: IntArray) -> float | None:
    """Median over the steps of the largest abs(log-ratio)."""
    tails = []
    for step in steps.tolist():
        ends = [s.at(step) for s in (high, low) if s is not None]
        logs = [abs(float(np.log(end))) for end in ends if end is not None and end > 0]
        if logs:
            tails.append(max(logs))
    return round(float(np.median(tails)), 6) if tails else None
