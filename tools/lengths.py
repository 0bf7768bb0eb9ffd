"""Completion lengths: the cap, truncation, and who grows (right or wrong answers)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.groups import outcome_part
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_correlation, group_spread, reward_weights, total_reward
from firstbad.tools.run import Run, Signal
from firstbad.tools.stats import level_shift
from firstbad.tools.token_counts import TokenCounts

PAYS, GROWS = 0.4, 1.3
"""Within-group correlation with length, and growth of the length, that count as pay for length."""


class Truncation(Dated):
    """Share of cut completions, and where lengths stand against the cap."""

    n_steps: int
    cap: float | None
    truncated_first: float
    """Mean share over the first third."""
    truncated_last: float
    truncated_largest: float
    length_over_cap: float | None
    """Mean length over the cap, last third."""
    masked_by_config: bool | None
    """Truncated completions are left out of the loss (`mask_truncated_completions`)."""


@tool
def check_truncation(run: Run) -> Measured[Truncation]:
    """Share of completions that end without a stop token, against the completion cap.

    Cannot tell: a cap that is right for rambling answers from one that cuts good ones; read the
    rows.
    """
    rate = run.signals.get("truncation_rate")
    if rate is None or len(rate.values) < 5:
        raise NoData("no logged share of truncated completions")
    length = run.signals.get("completion_length_mean")
    cap = run.config.number("max_completion_length")
    first, _, last = (float(v.mean()) for v in np.array_split(rate.values, 3))
    shift = level_shift(rate.values, margin=min(5, len(rate.values) // 2))
    at = None
    if shift is not None and shift.after > 0.3 and shift.after > 2 * shift.before + 0.1:
        at = shift.index
    start = float(rate.values[: max(3, len(rate.values) // 10)].mean()) > 0.5
    metrics = Truncation(
        n_steps=len(rate.values),
        cap=cap,
        truncated_first=_r(first),
        truncated_last=_r(last),
        truncated_largest=_r(float(rate.values.max())),
        length_over_cap=_over(length, cap),
        masked_by_config=run.config.flag("mask_truncated_completions"),
        last_good_step=int(rate.steps[at - 1]) if at and not start else None,
        first_bad_step=int(rate.steps[0]) if start else (int(rate.steps[at]) if at else None),
        from_start=start,
    )
    return Measured(
        metrics,
        f"cut completions {percent(first)} -> {percent(last)} (first and last third)"
        + (f", cap {cap:g} tokens" if cap else ""),
        signal="share of cut completions",
    )


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
    counts = TokenCounts(run, batches)
    outcome = outcome_part(run, batches)
    thirds = np.array_split(np.arange(len(batches)), 3)
    means = [float(np.mean([counts.rows(batches[i]).mean() for i in t])) for t in thirds]
    split: dict[tuple[bool, int], list[float]] = {}
    rates: dict[int, list[float]] = {}
    for where in (0, 2):
        for i in thirds[where]:
            score = batches[i].rewards.get(outcome)
            if score is None or not np.isfinite(score).any():
                continue
            n = counts.rows(batches[i])
            right = score >= np.nanmax(score) - 1e-6 if np.nanmax(score) > 0 else score > 0
            rates.setdefault(where, []).append(float(right.mean()))
            split.setdefault((True, where), []).extend(n[right].tolist())
            split.setdefault((False, where), []).extend(n[~right].tolist())
    late = [batches[i] for i in thirds[2]]
    totals: list[float] = []
    parts: dict[str, list[float]] = {}
    slopes: dict[str, list[float]] = {}
    for batch in late:
        n = counts.rows(batch)
        total = total_reward(run, batch)
        spread_n = group_spread(n, batch.group)
        if total is not None:
            r = group_correlation(n, total, batch.group)
            totals.extend(r[np.isfinite(r)].tolist())
        for name, values in batch.rewards.items():
            if name == outcome:
                continue
            r = np.nan_to_num(group_correlation(n, values, batch.group))
            spread = np.nan_to_num(group_spread(values, batch.group))
            slope = r * spread / np.maximum(spread_n, 1e-9)
            parts.setdefault(name, []).extend(r.tolist())
            slopes.setdefault(name, []).extend(slope.tolist())
    paid = max(parts, key=lambda k: float(np.mean(parts[k]))) if parts else None
    weight = _weight(run, batches[0].rewards.keys(), paid)
    pays = bool(paid and float(np.mean(parts[paid])) > PAYS and means[2] > GROWS * means[0])
    metrics = LengthByOutcome(
        n_rows=sum(len(b) for b in batches),
        growth=_r(means[2] / means[0]),
        growth_right=_ratio(split.get((True, 2)), split.get((True, 0))),
        growth_wrong=_ratio(split.get((False, 2)), split.get((False, 0))),
        reward_length_correlation=_r(float(np.mean(totals))) if totals else 0.0,
        paid_part_correlation=_r(float(np.mean(parts[paid]))) if paid else None,
        paid_part_slope=_r(weight * float(np.mean(slopes[paid]))) if paid else None,
        outcome_first=_r(float(np.mean(rates[0]))) if 0 in rates else None,
        outcome_last=_r(float(np.mean(rates[2]))) if 2 in rates else None,
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


def _ratio(after: list[float] | None, before: list[float] | None) -> float | None:
    if not after or not before or len(after) < 20 or len(before) < 20:
        return None
    return _r(float(np.mean(after)) / float(np.mean(before)))


def _over(length: Signal | None, cap: float | None) -> float | None:
    if length is None or not cap or len(length.values) < 3:
        return None
    return _r(float(np.array_split(length.values, 3)[2].mean()) / cap)


def _r(value: float) -> float:
    return round(float(value), 6)
