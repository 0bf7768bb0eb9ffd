"""Does every row name the weights that sampled it, and weights that the trainer had?"""

from __future__ import annotations

import numpy as np

from firstbad.tools.beside import rows_of_capture
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.probability.sides import claimed_lag, read_sides
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, FloatArray, Run

HALF = 0.5
"""Share of a difference that is there before the first update, and so has another reason."""


class Origin(Dated):
    """Rows of unknown origin: those that name no weights, or weights that came later.

    Differences are means of abs(trainer - engine) in nats.
    """

    n_rows: int
    """Of captured steps with fresh rollouts and the version of the trainer."""
    unnamed_share: float
    """Share of rows that name no version."""
    newer_share: float
    """Share of rows that name weights which the trainer did not have yet."""
    unknown_share: float
    """Both."""
    unknown_since: float | None
    """... of the rows from the first such step on; None without one."""
    ahead_most: int
    """Updates by which a row is ahead of the trainer at most."""
    numbered_otherwise: bool
    """All rows of all steps are ahead by the same: both sides count from another number."""
    n_tokens: int
    """Captured tokens of rows of unknown origin, with log-probs of both sides."""
    difference: float | None
    difference_others: float | None
    """Of rows that name the trainer's own weights."""
    over_others: float | None
    before_updates: float | None
    """... of rows of unknown origin at the first step, when there were no other weights; None where
    it was not captured."""
    there_before_updates: bool
    """That is half of `difference` or more: the engine computes otherwise on them."""


@tool
def check_row_origin(run: Run) -> Measured[Origin]:
    """Versions of the weights that rows name, against those that the trainer had by then.

    Older weights are legal within the allowed lag (`check_policy_lag`); none, or weights from
    later on, are not.

    Cannot tell: whether the named version is the one that sampled; see `compare_logprobs`.
    """
    lags = _lags(run)
    if not any(np.isfinite(lag).any() for lag in lags.values()):
        raise NoData("no captured steps with the policy version of trainer and rollouts")
    steps = sorted(lags)
    everything = np.concatenate([lags[s] for s in steps])
    otherwise = bool(everything[0] < 0) and bool((everything == everything[0]).all())
    unknown = {s: _unknown(lags[s]) & (not otherwise) for s in steps}
    off = [s for s in steps if unknown[s].any()]
    since = [unknown[s] for s in steps if off and s >= off[0]]
    n, difference, others, unmoved = _differences(run)
    ahead = -everything[everything < 0]
    metrics = Origin(
        n_rows=len(everything),
        unnamed_share=_r(np.isnan(everything).mean()),
        newer_share=_r((everything < 0).mean()),
        unknown_share=_r(np.concatenate([unknown[s] for s in steps]).mean()),
        unknown_since=_r(np.concatenate(since).mean()) if since else None,
        ahead_most=int(ahead.max()) if len(ahead) else 0,
        numbered_otherwise=otherwise,
        n_tokens=n,
        difference=difference,
        difference_others=others,
        over_others=_r(difference / others) if difference and others else None,
        before_updates=unmoved,
        there_before_updates=bool(difference and unmoved and unmoved >= HALF * difference),
        last_good_step=max((s for s in steps if off and s < off[0]), default=None),
        first_bad_step=off[0] if off else None,
        from_start=bool(off) and off[0] == steps[0],
        sampled=True,
    )
    return Measured(
        metrics,
        f"of {number(len(everything))} captured rows {percent(metrics.unnamed_share)} name no "
        f"version of the weights, and {percent(metrics.newer_share)} one that came later",
        window=(steps[0], steps[-1]),
        signal="policy version of the rollouts",
    )


def _lags(run: Run) -> dict[int, FloatArray]:
    """(R,) updates that each row is behind, by step; NaN for rows without a version."""
    found = {}
    for step in sorted(run.flight.steps):
        kept, batch = run.flight.at(step), rows_of_capture(run, step)
        if batch is None or kept.first_pass is False or kept.policy_version is None:
            continue
        lag = claimed_lag(run, step)
        rows = np.full(len(batch), np.nan) if lag is None else lag
        if len(rows):
            found[step] = rows
    return found


def _unknown(lag: FloatArray) -> BoolArray:
    return np.asarray(np.isnan(lag) | (lag < 0))


def _differences(run: Run) -> tuple[int, float | None, float | None, float | None]:
    """Tokens of rows of unknown origin, and means of abs(trainer - engine).

    Of those, of the others, and of those before any update.
    """
    found: dict[str, list[FloatArray]] = {"unknown": [], "own": [], "first": []}
    for s in read_sides(run, "trainer", "engine"):
        engine, own = s.side("engine"), s.trainer
        if engine is None or own is None:
            continue
        lag = np.full(len(s.ids), np.nan) if s.lag is None else s.lag
        unknown = _unknown(lag)
        for name, rows in (
            ("unknown", unknown),
            ("own", lag == 0),
            ("first", unknown & (s.step <= 1)),
        ):
            use = s.real & rows[:, None] & np.isfinite(engine) & np.isfinite(own)
            found[name].append(np.abs(own - engine)[use])
    values = {name: np.concatenate([*parts, np.empty(0)]) for name, parts in found.items()}
    mean = {name: _r(v.mean()) if len(v) else None for name, v in values.items()}
    return len(values["unknown"]), mean["unknown"], mean["own"], mean["first"]


def _r(value: float | np.floating) -> float:
    return round(float(value), 6)
