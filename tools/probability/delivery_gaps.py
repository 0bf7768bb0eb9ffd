"""Did weight deliveries go on? Steps without one, beyond the usual distance between two."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number
from firstbad.tools.probability.sides import claimed_lag, pooled, read_sides
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run
from firstbad.tools.segments import resumes

FEWEST = 5
"""Deliveries from which on a usual distance is known."""
LOGGED = "logprob_diff_mean"


class DeliveryGaps(Dated):
    """The longest stretch of steps whose rollouts were due to come from newer weights.

    Differences are means of abs(trainer - engine) in nats, over captured tokens of rows that claim
    the trainer's own weights, or else of the logged mean.
    """

    n_deliveries: int
    """At different steps."""
    usual_gap: float
    """Median distance between two of them, in steps."""
    regular_share: float
    """Share of the distances that are at most one and a half times as long."""
    n_missed: int
    """Deliveries that would have come in the stretch; 0 where there is none. Not counted: distances
    beside one of more than half their length, as where deliveries become rarer."""
    n_steps: int
    """Steps of the stretch."""
    resume_step: int | None
    """The resume that it begins with: the delivery before the first rollouts after it is missing.
    Known only where one comes at every step."""
    at_resume: bool
    n_tokens: int
    """Captured tokens in the stretch with log-probs of both sides."""
    difference_in: float | None
    difference_out: float | None
    """... in all other steps."""
    over_outside: float | None
    """`difference_in` over `difference_out`."""
    share_older: float | None
    """Share of the captured rows in the stretch that claim older weights than the trainer's; None
    where none claims any."""


@dataclass(frozen=True)
class _Stretch:
    first: int
    last: int
    missed: int
    ends: bool
    resume: int | None = None


@tool
def find_delivery_gaps(run: Run) -> Measured[DeliveryGaps]:
    """Steps without a weight delivery, against the run's own usual distance between two.

    What is delivered after step s is sampled from in step s + 1. The end counts as far as captures
    show that the record went on, the beginning does not: both sides begin with the same weights.

    Cannot tell: a delivery that was made and not written down, unless log-probs of both sides in
    these steps tell; deliveries at irregular times.
    """
    steps = sorted({s.step for s in run.flight.syncs})
    if len(steps) < FEWEST:
        raise NoData(f"{len(steps)} deliveries of weights on record; at least {FEWEST} are needed")
    gaps = np.diff(steps)
    usual = float(np.median(gaps))
    known = sorted({*run.signals.steps.tolist(), *run.rollouts.steps.tolist()})
    end = max([steps[-1], *run.flight.steps])  # captures show that the record still went on
    found = _longest(steps, end, usual, known, resumes(run))
    difference = _differences(run, found)
    metrics = DeliveryGaps(
        n_deliveries=len(steps),
        usual_gap=usual,
        regular_share=round(float((gaps <= 1.5 * usual).mean()), 6),
        n_missed=found.missed if found else 0,
        n_steps=found.last - found.first + 1 if found else 0,
        resume_step=found.resume if found else None,
        at_resume=found is not None and found.resume is not None,
        n_tokens=difference[0],
        difference_in=difference[1],
        difference_out=difference[2],
        over_outside=None
        if not difference[1] or not difference[2]
        else round(difference[1] / difference[2], 4),
        share_older=_share_older(run, found),
        last_good_step=found.first - 1 if found else None,
        first_bad_step=found.first if found else None,
        last_bad_step=found.last if found and found.ends else None,
    )
    told = f"{number(len(steps))} weight deliveries, one every {number(usual)} steps as a rule"
    if found:
        told += f"; in steps {found.first} to {found.last} {number(found.missed)} are missing"
    return Measured(
        metrics,
        told,
        window=(steps[0], max([steps[-1], *known])),
        signal="ledger of weight deliveries",
    )


def _longest(
    steps: list[int], end: int, usual: float, known: list[int], restarts: list[int]
) -> _Stretch | None:
    """The stretch that begins at a resume, or else the longest one that lies on record."""
    found = []
    gaps = [b - a for a, b in pairwise(steps)]
    for i, (a, b) in enumerate(pairwise([*steps, end] if end > steps[-1] else steps)):
        ends = i < len(gaps)
        missed = int((b - 1 - a) // usual)
        beside = [*gaps[max(0, i - 1) : i], *gaps[i + 1 : i + 2]]
        resume = next((r for r in restarts if a < r - 1 < b), None) if usual == 1 else None
        first = resume if resume is not None else round(a + usual) + 1
        if missed < 1 or any(2 * g > b - a for g in beside):
            continue
        if any(first <= step <= b for step in known):
            found.append(_Stretch(first, b, missed, ends, resume))
    return max(found, key=lambda s: (s.resume is not None, s.missed, -s.first), default=None)


def _differences(run: Run, found: _Stretch | None) -> tuple[int, float | None, float | None]:
    """Tokens in the stretch, and the mean abs(trainer - engine) inside and outside of it."""
    if found is None:
        return 0, None, None
    inside: list[FloatArray] = []
    outside: list[FloatArray] = []
    for s, use, delta in pooled(list(read_sides(run, "trainer", "engine")), "trainer", "engine"):
        (inside if found.first <= s.step <= found.last else outside).append(np.abs(delta[use]))
    n = sum(len(values) for values in inside)
    if n:
        return n, _mean(np.concatenate(inside)), _mean(np.concatenate([*outside, np.empty(0)]))
    logged = run.signals.get(LOGGED)
    if logged is None:
        return 0, None, None
    within = (logged.steps >= found.first) & (logged.steps <= found.last)
    return 0, _mean(logged.values[within]), _mean(logged.values[~within])


def _share_older(run: Run, found: _Stretch | None) -> float | None:
    if found is None:
        return None
    inside = [s for s in run.flight.steps if found.first <= s <= found.last]
    lags = [lag for s in inside if (lag := claimed_lag(run, s)) is not None]
    return _mean(np.concatenate(lags) > 0) if lags else None


def _mean(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return round(float(finite.mean()), 6) if len(finite) else None
