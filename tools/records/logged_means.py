"""Logged means recomputed from rollouts: does the dashboard say what its names say?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Table
from firstbad.tools.numbers import number
from firstbad.tools.records.logging_window import Reading, readings
from firstbad.tools.records.rank_means import local_first
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_stats, reward_weights
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, IntArray, RolloutBatch, Run
from firstbad.tools.segments import HeldToSettings, held_to_settings

TOLERANCE = 2e-3
"""Logged means are float32, some sources print four digits."""
FEWEST = 5
"""Steps in which rows differ that can vouch for the rows."""
PERCENT = 100.0
SELDOM = 0.05
"""Share of steps at which a signal may differ that counts as agreeing."""


class Recomputed(HeldToSettings):
    """Logged against recomputed."""

    rows_complete: bool | None
    """Steps hold all rows that were trained on, so that a mean over them is the mean."""
    n_compared: int
    """Pairs of logged and recomputed values."""
    n_signals: int
    share_differs: float
    """Of pairs that differ by more than 0.002 plus 0.2 %."""
    worst_signal_share: float
    """The same share, for the signal that differs most often."""
    share_differs_shifted: float
    """The same share for that signal when rollouts are stored one step early or late, whichever
    fits better: near 0 where only the step label is off by one."""
    another_agrees: bool
    """Another signal is logged as it is recomputed at nearly every step in which rows differ in it
    (five or more), and no guess at the weights of reward parts is needed for the one that differs
    most often: then the rows are those that the log speaks of, whatever the settings say."""
    n_scaled: int
    """Signals that are logged times their weight, or in percent, and so compared."""
    another_total: bool
    """What is logged as the total is not that of the rows, nor a multiple of it, while every part
    is right: it may hold a penalty or a KL term that rows do not. False where the rows are known
    to be all there."""
    share_differs_trained: float
    """The same share when the mean is taken over the rows with an advantage, as where groups
    without contrast are dropped before training; 1 where no advantages are written."""
    share_differs_ranks: float | None
    """The same share when each rank's rows are averaged first and the ranks' means then; near 0
    where that is what was logged. None where no file says which rank held a row."""
    largest_difference: float
    zero_std_logged_mean: float | None
    zero_std_recomputed_mean: float | None
    zero_std_differs: bool | None
    """Logged share of zero-variance groups differs from the one recomputed with a tolerance of
    1e-4: float32 spread of equal rewards exceeds the 1e-8 that some frameworks test with."""
    reward_std_is_global: bool | None


@tool
@held_to_settings("reward_weights")
def recompute_means(run: Run) -> Measured[Recomputed]:
    """Logged reward means and spreads against the same figures recomputed from the rollouts.

    Means over all rows of a step; the total is the weighted sum of the parts with the weights of
    the config. A row that is logged every few steps is held against the mean of these steps, where
    the rollouts of all are there: a mean over several batches can't be recomputed from the last.
    A mean times the weight of its part, or in percent, is that mean.

    Cannot tell: which of the two is wrong; read the rows shown.
    """
    if not run.rollouts:
        raise NoData("no rollouts to recompute the logged means from")
    batches = list(run.rollouts.batches())
    rows = RowTable.of(run, batches)
    ways = [_Logged(run, rows, reading) for reading in readings(run, rows.steps)]
    tried = [
        [p for name, v in _values(rows).items() if len((p := way.pairs(name, v)).step)]
        for way in ways
    ]
    at = min(range(len(ways)), key=lambda i: sum(int(p.differ.sum()) for p in tried[i]))
    way, found = ways[at], tried[at]
    if not found:
        raise NoData("rollouts and metrics share no step with a recomputable figure")
    pairs = [_in_units(p, run, rows.parts) for p in found]
    scaled = [p for p in pairs if p.factor != 1]
    complete = rows_complete(run)
    n = sum(len(p.step) for p in pairs)
    worst = max(pairs, key=lambda p: float(p.differ.mean()))
    bad = sorted(row for p in pairs for row in p.rows(p.differ))
    first = bad[0][0] if bad else None
    steps = np.unique(np.concatenate([p.step for p in pairs])).tolist()
    good = [s for s in steps if first is None or s < first]
    spread = _Spread(way)
    metrics = Recomputed(
        rows_complete=complete,
        n_compared=n,
        n_signals=len(pairs),
        share_differs=round(len(bad) / n, 6),
        worst_signal_share=round(float(worst.differ.mean()), 6),
        share_differs_shifted=round(worst.differ_shifted(), 6),
        another_agrees=_another_agrees(way, pairs, worst),
        n_scaled=len(scaled),
        another_total=complete is not True and _another_total(pairs, worst),
        share_differs_trained=round(_differ_trained(way, worst), 6),
        share_differs_ranks=_differ_ranks(way, batches, worst),
        largest_difference=round(max(float(np.abs(p.logged - p.value).max()) for p in pairs), 6),
        zero_std_logged_mean=_rounded(spread.zero[0]),
        zero_std_recomputed_mean=_rounded(spread.zero[1]),
        zero_std_differs=spread.zero_differs,
        reward_std_is_global=spread.std_is_global,
        last_good_step=good[-1] if good else None,
        first_bad_step=first,
        from_start=bool(bad) and not good,
    )
    table = Table(
        title="logged values that differ from the recomputed ones",
        columns=("step", "signal", "logged", "recomputed"),
        rows=tuple((s, name, round(a, 6), round(b, 6)) for s, name, a, b in bad[:20]),
        cut_rows=max(0, len(bad) - 20),
    )
    return Measured(
        metrics,
        f"{n} logged means of {len(pairs)} signals recomputed from rollouts: {len(bad)} differ"
        + (f", most often `{worst.name}` from step {first}" if bad else ""),
        tables=(table,) if bad else (),
        signal=f"logged {worst.name}" if bad else "",
        quote="; ".join(f"`{p.name}` is logged times {number(p.factor)}" for p in scaled),
    )


@dataclass(frozen=True)
class _Pairs:
    """A signal's logged values and the recomputed ones, at the steps that have both."""

    name: str
    step: IntArray
    logged: FloatArray
    value: FloatArray
    factor: float = 1.0
    """What the log had multiplied the values with; `logged` is without it."""

    def over(self, factor: float) -> _Pairs:
        """The pairs with a factor taken out of what is logged."""
        return replace(self, logged=self.logged / factor, factor=factor)

    @property
    def is_multiple(self) -> bool:
        """What is logged is the values times one number."""
        size = float(self.value @ self.value)
        factor = float(self.logged @ self.value) / size if size else 0.0
        return factor != 0 and float(self.over(factor).differ.mean()) <= SELDOM

    @property
    def differ(self) -> BoolArray:
        return self._apart(self.logged, self.value)

    def differ_shifted(self) -> float:
        """Share that differs with rollouts moved by one step, early or late, at its best."""
        a, b = self.logged, self.value
        if len(a) < 2:
            return 1.0
        return min(
            float(self._apart(a[1:], b[:-1]).mean()), float(self._apart(a[:-1], b[1:]).mean())
        )

    def rows(self, which: BoolArray) -> list[tuple[int, str, float, float]]:
        values = (self.step[which], self.logged[which], self.value[which])
        return [(s, self.name, a, b) for s, a, b in zip(*(v.tolist() for v in values), strict=True)]

    def _apart(self, logged: FloatArray, value: FloatArray) -> BoolArray:
        found: BoolArray = np.abs(logged - value) > self._tolerance * (1 + np.abs(value))
        return found

    @property
    def _tolerance(self) -> float:
        """Half a unit of the last digit that the log writes, and never below the common one."""
        for digits in range(4):
            scaled = self.logged * 10**digits
            if np.allclose(scaled, np.round(scaled), atol=1e-6):
                return max(TOLERANCE, 0.51 * 10.0**-digits)
        return TOLERANCE


def _values(rows: RowTable) -> dict[str, FloatArray]:
    """Mean per step, (S,), of each recomputable signal; NaN where it cannot be recomputed."""
    parts = {name: rows.part(name) for name in rows.parts}
    values = {f"reward_part/{name}": rows.mean(part) for name, part in parts.items()}
    # How frameworks fill gaps in a total differs, so only steps without gaps are compared.
    gaps = rows.count(~np.isfinite(np.sum([rows.total, *parts.values()], axis=0))) > 0
    values["reward_mean"] = np.where(gaps, np.nan, rows.mean(rows.total))
    return values


@dataclass(frozen=True)
class _Logged:
    """What the log says, beside the rows, and how a logged row is read."""

    run: Run
    rows: RowTable
    read: Reading

    def pairs(self, name: str, value: FloatArray) -> _Pairs:
        """A signal beside a figure of each step, (S,)."""
        logged, said = self.rows.logged(self.run.signals.get(name)), self.read(value)
        both = np.isfinite(logged) & np.isfinite(said)
        return _Pairs(name, self.rows.steps[both], logged[both], said[both])


def _in_units(pairs: _Pairs, run: Run, parts: Sequence[str]) -> _Pairs:
    """The pairs, or, where these differ, without the factor that a logger may write them with."""
    part, weights = pairs.name.removeprefix("reward_part/"), reward_weights(run, len(parts))
    own = [float(weights[parts.index(part)])] if part in parts and weights is not None else []
    if float(pairs.differ.mean()) > SELDOM:
        for factor in (*own, PERCENT):
            tried = pairs.over(factor) if factor else pairs
            if float(tried.differ.mean()) <= SELDOM:
                return tried
    return pairs


def _another_total(pairs: Sequence[_Pairs], worst: _Pairs) -> bool:
    parts = [p for p in pairs if p.name != "reward_mean"]
    right = all(float(p.differ.mean()) <= SELDOM for p in parts)
    return worst.name == "reward_mean" and bool(parts) and right and not worst.is_multiple


def _another_agrees(way: _Logged, pairs: Sequence[_Pairs], worst: _Pairs) -> bool:
    guessed = way.rows.total_is_summed and "reward_weights" not in way.run.config.values
    if worst.name == "reward_mean" and guessed:
        return False
    return any(p is not worst and _vouches(way, p.name) for p in pairs)


def _vouches(way: _Logged, name: str) -> bool:
    """Whether a signal is logged as recomputed where rows of a step differ in it.

    Where all rows of a step have one score, any of them have its mean.
    """
    rows = way.rows
    part = name.removeprefix("reward_part/")
    values = rows.part(part) if part in rows.parts else rows.total
    mean = rows.mean(values)
    varies = rows.mean(values**2) - mean**2 > TOLERANCE**2
    told = way.pairs(name, np.where(varies, mean, np.nan))
    return len(told.step) >= FEWEST and float(told.differ.mean()) <= SELDOM


def _differ_trained(way: _Logged, worst: _Pairs) -> float:
    """Share of the signal's steps that differ from the mean over rows with an advantage."""
    rows = way.rows
    part = worst.name.removeprefix("reward_part/")
    values = rows.part(part) if part in rows.parts else rows.total
    kept = (np.abs(rows.advantage) > 1e-6) & np.isfinite(values)
    found = way.pairs(worst.name, rows.mean(values, kept)).differ
    return float(found.mean()) if len(found) else 1.0


def _differ_ranks(way: _Logged, batches: Sequence[RolloutBatch], worst: _Pairs) -> float | None:
    """Share of the signal's steps that differ from every mean taken over ranks first."""
    rows = way.rows
    ranks = [batch.rank for batch in batches]
    if not batches or any(rank is None or (rank < 0).any() for rank in ranks):
        return None
    part = worst.name.removeprefix("reward_part/")
    values = rows.part(part) if part in rows.parts else rows.total
    figures, at = [], 0
    for rank in ranks:
        assert rank is not None
        own = values[at : at + len(rank)]
        figures.append(local_first(own, rank) if np.isfinite(own).all() else [np.nan] * 3)
        at += len(rank)
    differ = [way.pairs(worst.name, np.array(v)).differ for v in zip(*figures, strict=True)]
    return round(min(float(d.mean()) if len(d) else 1.0 for d in differ), 6)


class _Spread:
    """Logged spreads of the reward, and shares of groups without any, beside recomputed ones."""

    def __init__(self, way: _Logged) -> None:
        run, rows, read = way.run, way.rows, way.read
        known = rows.count(~np.isfinite(rows.total)) == 0
        spread = group_stats(rows.total, rows.group).spread
        groups = np.bincount(rows.group_step, minlength=len(rows.steps))
        within = np.bincount(rows.group_step, weights=spread, minlength=len(rows.steps)) / groups
        equal = np.bincount(rows.group_step, weights=spread < 1e-4, minlength=len(rows.steps))
        logged = rows.logged(run.signals.get("frac_zero_variance_groups"))
        shares = read(np.where(known, equal / groups, np.nan))
        both = np.isfinite(shares) & np.isfinite(logged)
        zero = np.array([logged[both], shares[both]])
        self.zero = zero.mean(axis=1).tolist() if both.any() else (None, None)
        self.zero_differs = bool(np.abs(zero[0] - zero[1]).mean() > 0.01) if both.any() else None
        std = rows.logged(run.signals.get("reward_std"))
        unbiased = np.sqrt(rows.size / np.maximum(rows.size - 1, 1))
        usable = known & (rows.size > 1)
        overall, within = (
            read(np.where(usable, v, np.nan)) for v in (rows.spread(rows.total) * unbiased, within)
        )
        use = np.isfinite(overall) & np.isfinite(within) & np.isfinite(std)
        self.std_is_global: bool | None = None
        """Whether the logged spread fits the batch's better than the mean of the groups'.

        None where the two are the same, as with one group a step.
        """
        if use.sum() >= 5 and not np.allclose(overall[use], within[use], rtol=1e-6):
            apart = (np.abs(std[use] - fits[use]).mean() for fits in (overall, within))
            self.std_is_global = bool(next(apart) < next(apart))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
