"""Pay for length: who grows (right or wrong answers), and what the reward gives for it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_correlation, group_spread, reward_weights
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, IntArray, Run
from firstbad.tools.token_counts import TokenCounts

PAYS, GROWS = 0.4, 1.3
"""Within-group correlation with length, and growth of the length, that count as pay for length."""


class LengthByOutcome(Dated):
    """Lengths of right and wrong answers, and what the reward pays for length."""

    n_rows: int
    growth: float
    """Mean length of the last third over the first."""
    growth_right: float | None
    growth_wrong: float | None
    reward_length_correlation: float
    """Mean within-group correlation of total reward and length, last third."""
    paid_part_correlation: float | None
    """Same, for the part (other than the outcome) that goes most with length."""
    paid_part_slope: float | None
    """Weighted reward of that part per extra token, within groups, last third."""
    outcome_first: float | None
    outcome_last: float | None


@tool
def measure_length_pay(run: Run) -> Measured[LengthByOutcome]:
    """Length of right and wrong answers over the run, and pay for length inside groups.

    Within one prompt's group difficulty is the same, so a correlation of reward and length there is
    pay for length, not a mix effect.

    Cannot tell: whether long answers are better in a way that nobody scores.
    """
    batches = [b for b in run.rollouts.batches() if b.rewards or b.total is not None]
    if len(batches) < 6:
        raise NoData("rollouts with rewards of fewer than six steps")
    outcome = outcome_part(run, batches)
    rows = RowTable.of(run, batches)
    n = TokenCounts(run, rows).rows
    thirds = np.array_split(np.arange(len(batches)), 3)
    of_third = np.concatenate([np.full(len(t), i) for i, t in enumerate(thirds)])[rows.step]
    means = [float(np.mean(part)) for part in np.array_split(rows.mean(n), 3)]
    score = rows.part(outcome) if outcome in rows.parts else np.full(len(n), np.nan)
    scored, right = np.isfinite(score), _right(rows, score)

    def lengths(third: int, *, of_right: bool) -> FloatArray:
        found: FloatArray = n[(of_third == third) & (right if of_right else scored & ~right)]
        return found

    late = RowTable(run, [batches[i] for i in thirds[2]])
    n_late = n[of_third == 2]
    total = group_correlation(n_late, late.total, late.group)
    total = total[np.isfinite(total)]
    spread_n = np.maximum(group_spread(n_late, late.group), 1e-9)
    parts: dict[str, float] = {}
    slopes: dict[str, float] = {}
    for name in late.parts:
        if name != outcome:
            values = late.part(name)
            r = np.nan_to_num(group_correlation(n_late, values, late.group))
            parts[name] = float(r.mean())
            slopes[name] = float(
                (r * np.nan_to_num(group_spread(values, late.group)) / spread_n).mean()
            )
    paid = max(parts, key=lambda name: parts[name]) if parts else None
    weight = _weight(run, batches[0].rewards.keys(), paid)
    pays = bool(paid and parts[paid] > PAYS and means[2] > GROWS * means[0])
    metrics = LengthByOutcome(
        n_rows=sum(len(b) for b in batches),
        growth=_r(means[2] / means[0]),
        growth_right=_ratio(lengths(2, of_right=True), lengths(0, of_right=True)),
        growth_wrong=_ratio(lengths(2, of_right=False), lengths(0, of_right=False)),
        reward_length_correlation=_r(float(total.mean())) if len(total) else 0.0,
        paid_part_correlation=_r(parts[paid]) if paid else None,
        paid_part_slope=_r(weight * slopes[paid]) if paid else None,
        outcome_first=_rate(rows, right, scored, thirds[0]),
        outcome_last=_rate(rows, right, scored, thirds[2]),
        first_bad_step=batches[0].step if pays else None,
        from_start=pays,
    )
    table = Table(
        title="mean length in tokens, thirds of the run",
        columns=("first", "middle", "last"),
        rows=(tuple(round(m, 2) for m in means),),
    )
    text = f"mean length {means[0]:.1f} -> {means[2]:.1f} tokens (first and last third)"
    if paid:
        text += f"; `{paid}` goes with length by r {metrics.paid_part_correlation:.2f} in groups"
    return Measured(metrics, text, tables=(table,), signal="pay for length")


def _weight(run: Run, names: Iterable[str], paid: str | None) -> float:
    columns = list(names)
    weights = reward_weights(run, len(columns))
    return 1.0 if weights is None or paid not in columns else float(weights[columns.index(paid)])


def _right(rows: RowTable, score: FloatArray) -> BoolArray:
    """(N,) rows at the top score of their step, where that is above 0."""
    top = np.full(len(rows.steps), -np.inf)
    np.fmax.at(top, rows.step, score)
    right: BoolArray = (score >= top[rows.step] - 1e-6) & (top[rows.step] > 0)
    return right


def _rate(rows: RowTable, right: BoolArray, scored: BoolArray, steps: IntArray) -> float | None:
    """Mean over steps of the share of right rows; None where no step was scored."""
    rate = (rows.count(right) / rows.size)[steps][rows.count(scored)[steps] > 0]
    return _r(float(rate.mean())) if len(rate) else None


def _ratio(after: FloatArray, before: FloatArray) -> float | None:
    if len(after) < 20 or len(before) < 20:
        return None
    return _r(float(after.mean()) / float(before.mean()))


def _r(value: float) -> float:
    return round(float(value), 6)
