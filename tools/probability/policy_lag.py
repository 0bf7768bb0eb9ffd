"""How old are the weights that sampled the rows, by the record's own version numbers?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.probability.sides import Sides, claimed_lag, read_sides
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run
from firstbad.tools.updates import updates_per_batch

ALLOWED = (
    "max_staleness",
    "max_policy_lag",
    "max_off_policy_steps",
    "max_async_level",
    "async_level",
    "max_trajectory_age_steps",
    "max_staleness_steps",
    "max_head_offpolicyness",
)
"""Settings that bound the lag, in steps: where a step makes several updates, as many versions."""

CORRECTIONS = ("vllm_importance_sampling_correction", "rollout_is", "use_tis", "tis_imp_ratio_cap")
"""Settings that weigh tokens by how far the sampler is, or switch that off."""


PRESENT = 1e-3
"""Difference, in nats, below which old log-probs are those of the present policy."""


class PolicyLag(Dated):
    """Lag: updates that the trainer's weights are ahead of those that sampled a row.

    The onset is that of rows that are too old; without any, that of old log-probs of older rows
    that are those of the present policy.
    """

    n_rows: int
    allowed: float | None
    """Largest lag by the settings, in updates; None where none of them bounds it."""
    corrected: bool | None
    """The settings weigh tokens by how far their sampler is; None where none of them says."""
    mean: float
    largest: int
    share_over: float | None
    """Share of rows beyond what is allowed; None where that is not stated."""
    over_since: float | None
    """... of the steps from the first one with such a row on."""
    share_lagging: float
    """Share of rows that are older than the trainer."""
    early: float
    """Mean over the first third of the steps."""
    late: float
    over_early: float
    """`late` less `early`, in updates."""
    n_lagging_tokens: int | None
    """Captured tokens of rows that are older than the trainer, with log-probs of both sides."""
    lagging_difference: float | None
    """Mean abs(trainer - engine) on them, nats."""
    current_difference: float | None
    """... on rows of the trainer's own version."""
    old_fits_difference: float | None
    """Mean abs(old - engine) of lagging rows: near the floor where old log-probs are those of the
    policy that sampled."""
    old_copied: bool | None
    """Old log-probs of lagging rows are the engine's own numbers: that they agree says nothing."""
    old_is_new_difference: float | None
    """Mean abs(old - new) of lagging rows: 0 where old log-probs are those of the present policy,
    so that ratios begin at 1 by construction."""


@tool
def check_policy_lag(run: Run) -> Measured[PolicyLag]:
    """Policy version of the rollouts against that of the trainer, and against the allowed lag.

    Older weights are legal in asynchronous training within the allowed lag. Rows that name no
    version are left out: see `check_row_origin`.

    Cannot tell: whether the claimed version is the one that sampled; see `compare_logprobs`.
    """
    lags = {
        step: known
        for step in run.flight.steps
        if run.flight.at(step).first_pass is not False
        and (lag := claimed_lag(run, step)) is not None
        and len(known := lag[np.isfinite(lag)])
    }
    if not lags:
        raise NoData("no captured steps with the policy version of trainer and rollouts")
    steps = sorted(lags)
    everything = np.concatenate([lags[s] for s in steps])
    means = np.array([lags[s].mean() for s in steps])
    thirds = np.array_split(means, min(3, len(means)))
    stated = next((v for n in ALLOWED if (v := _number(run.config.values, n)) is not None), None)
    allowed = None if stated is None else stated * max(1.0, updates_per_batch(run) or 1.0)
    bound = max(1.0, float(thirds[0].mean()) + 1) if allowed is None else allowed
    off = [bool((lags[s] > bound).any()) for s in steps]
    first = next((i for i, o in enumerate(off) if o), None)
    fits = _fits(list(read_sides(run, "trainer", "engine")))
    dated = steps
    if first is None:  # none is too old: what is left to date are old log-probs of the present
        dated, present = list(fits.present), list(fits.present.values())
        first = next((i for i in range(len(present)) if all(present[i:])), None)
    metrics = PolicyLag(
        n_rows=len(everything),
        allowed=allowed,
        corrected=_corrected(run.config.values),
        mean=_r(everything.mean()),
        largest=int(everything.max()),
        share_over=None if allowed is None else _r((everything > allowed).mean()),
        over_since=None
        if allowed is None or first is None
        else _r((np.concatenate([lags[s] for s in steps[first:]]) > allowed).mean()),
        share_lagging=_r((everything > 0).mean()),
        early=_r(thirds[0].mean()),
        late=_r(thirds[-1].mean()),
        over_early=_r(thirds[-1].mean() - thirds[0].mean()),
        n_lagging_tokens=fits.n,
        lagging_difference=fits.lagging,
        current_difference=fits.current,
        old_fits_difference=fits.old,
        old_copied=fits.copied,
        old_is_new_difference=fits.same,
        first_bad_step=None if first is None else dated[first],
        last_good_step=None if not first else dated[first - 1],
        from_start=first == 0,
        sampled=True,
    )
    table = Table(
        title="lag of the rows, in updates",
        columns=("step", "rows", "mean", "largest"),
        rows=tuple((s, len(lags[s]), _r(lags[s].mean()), int(lags[s].max())) for s in steps[:60]),
        cut_rows=max(0, len(steps) - 60),
    )
    limit = "no allowed lag stated" if allowed is None else f"{number(allowed)} allowed"
    return Measured(
        metrics,
        f"{percent(metrics.share_lagging)} of {number(metrics.n_rows)} captured rows were sampled "
        f"by older weights than the trainer's, up to {metrics.largest} updates ({limit})",
        tables=(table,),
        window=(steps[0], steps[-1]),
        signal="policy version of the rollouts",
    )


@dataclass(frozen=True)
class _Fits:
    n: int | None
    lagging: float | None
    current: float | None
    old: float | None
    copied: bool | None
    same: float | None
    present: dict[int, bool]
    """By step with lagging rows: their old log-probs are those of the present policy."""


def _fits(sides: list[Sides]) -> _Fits:
    """Which log-probs the engine's fit, on rows of older weights and on the others."""
    found: dict[str, list[FloatArray]] = {k: [] for k in ("lagging", "current", "old", "same")}
    present: dict[int, bool] = {}
    for s in sides:
        engine, new, old = s.side("engine"), s.side("new"), s.side("old")
        own = new if new is not None else s.trainer
        if engine is None or own is None or s.lag is None:
            continue
        for kind, rows in (("lagging", s.lag > 0), ("current", s.lag == 0)):
            use = s.real & rows[:, None] & np.isfinite(engine) & np.isfinite(own)
            found[kind].append(np.abs(own - engine)[use])
            if kind == "lagging" and old is not None:
                found["old"].append(np.abs(old - engine)[use])
                if new is not None:
                    found["same"].append(same := np.abs(old - new)[use])
                    if len(same):
                        present[s.step] = bool(same.mean() < PRESENT)
    pools = {k: np.concatenate(v) for k, v in found.items() if v}
    mean = {k: _r(v.mean()) for k, v in pools.items() if len(v)}
    return _Fits(
        len(pools["lagging"]) if "lagging" in pools else None,
        mean.get("lagging"),
        mean.get("current"),
        mean.get("old"),
        bool((pools["old"] == 0).all()) if "old" in mean else None,
        mean.get("same"),
        present,
    )


def _corrected(values: Mapping[str, object]) -> bool | None:
    said = [v for k, v in values.items() if k.rpartition(".")[2] in CORRECTIONS]
    return any(v not in (None, False, "none", "null", 0) for v in said) if said else None


def _number(values: Mapping[str, object], name: str) -> float | None:
    """A setting by its last name, wherever it stands."""
    for key, value in values.items():
        if key.rpartition(".")[2] == name and type(value) in (int, float):
            return float(str(value))
    return None


def _r(value: float | np.floating) -> float:
    return round(float(value), 6)
