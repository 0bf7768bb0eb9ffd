"""Ratios and clip hits of single updates, from the recorded ledger of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from firstbad.tools.flight import FlightStep, Microbatch
from firstbad.tools.run import Run


@dataclass(frozen=True)
class LedgerRatios:
    """Of one update, or medians of several; None where the ledger does not say."""

    p50: float | None = None
    """Ratio of new to old probability: mean of the micro-batches' medians, by tokens."""
    p95: float | None = None
    """The largest of the micro-batches, as are P99 and the largest ratio."""
    p99: float | None = None
    largest: float | None = None
    clipped_low: float | None = None
    """Share of the tokens that the lower side of the clip range counts."""
    clipped_high: float | None = None
    kl_old: float | None = None
    """KL to the policy before the batch, nats per token."""

    @property
    def clipped(self) -> float | None:
        """Share on both sides; None unless both are told."""
        if self.clipped_low is None or self.clipped_high is None:
            return None
        return self.clipped_low + self.clipped_high


NONE = LedgerRatios()


def by_update(run: Run, updates: int | None, starts: Iterable[int]) -> list[list[LedgerRatios]]:
    """What the ledger holds of the first, second, ... update over a rollout batch.

    A captured step may hold all updates over its batch, told apart by their number, or be one of
    them; then `starts` are steps known to begin a batch, beside those whose rows were recorded as
    fresh. Empty where nothing is recorded of ratios, or nothing tells which update a step is.
    """
    kept = [step for step in run.flight if any(_says(part) for part in step.microbatches)]
    inside = [_inside(step) for step in kept]
    most = max(map(len, inside), default=0)
    if most > 1:
        whole = [each for each in inside if len(each) == (updates or most)]
        return [list(each) for each in zip(*whole, strict=True)]
    if updates is None or updates < 2:
        return []
    begins = np.array(sorted({*starts, *(step.step for step in run.flight if step.first_pass)}))
    found: list[list[LedgerRatios]] = [[] for _ in range(updates)]
    for step, each in zip(kept, inside, strict=True):
        before = begins[begins <= step.step]
        at = step.step - int(before[-1]) if len(before) else updates
        if at < updates:
            found[at] += each
    return found


def medians(each: Sequence[LedgerRatios]) -> LedgerRatios:
    """Of each figure, over the updates that have it."""
    found = {}
    for name in (field.name for field in fields(LedgerRatios)):
        values = [value for one in each if (value := getattr(one, name)) is not None]
        found[name] = round(float(np.median(values)), 6) if values else None
    return LedgerRatios(**found)


def _says(part: Microbatch) -> bool:
    told = (part.ratio_p50, part.ratio_p95, part.ratio_p99, part.ratio_max)
    return any(v is not None for v in (*told, part.clip_low_share, part.clip_high_share))


def _inside(step: FlightStep) -> list[LedgerRatios]:
    numbers = sorted({part.update or 0 for part in step.microbatches})
    return [_of([p for p in step.microbatches if (p.update or 0) == n]) for n in numbers]


def _of(parts: Sequence[Microbatch]) -> LedgerRatios:
    return LedgerRatios(
        _mean(parts, lambda p: p.ratio_p50),
        _largest(p.ratio_p95 for p in parts),
        _largest(p.ratio_p99 for p in parts),
        _largest(p.ratio_max for p in parts),
        _mean(parts, lambda p: p.clip_low_share),
        _mean(parts, lambda p: p.clip_high_share),
        _mean(parts, lambda p: p.kl_old),
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _mean(parts: Sequence[Microbatch], of: Callable[[Microbatch], float | None]) -> float | None:
    """Weighed by trained tokens; a micro-batch without any counts for nothing."""
    told = [(v, 1 if p.n_tokens is None else p.n_tokens) for p in parts if (v := of(p)) is not None]
    tokens = sum(n for _, n in told)
    return sum(v * n for v, n in told) / tokens if tokens else None
