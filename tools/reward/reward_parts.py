"""Reward parts, each alone: ranges, constants, outliers, and a part that rises for nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_spread, reward_weights
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, RolloutBatch, Run
from firstbad.tools.stats import level_shift

CONSTANT = 5
"""Steps in a row without any spread before a part counts as constant."""
AT_ONCE = 2 / 3
"""Share of a change of range (its logarithm) that three steps on each side must show."""


class Parts(Dated):
    """What happened to single parts; the onset is that of the part that changed first."""

    n_parts: int
    n_steps: int
    constant_part: bool
    """A part with spread before has none for at least five steps, to the end or for a stretch."""
    constant_value: float | None
    constant_first_step: int | None
    constant_is_outcome: bool
    scale_factor: float
    """Largest factor by which the size of a part's values (95th percentile of abs) changes."""
    scale_step: int | None
    part_turned: bool
    """A part that paid 0 and more pays 0 and less from some step on, or the reverse."""
    turned_step: int | None
    outlier_factor: float
    """Largest abs value of a part over its usual largest, where few rows hold it."""
    outlier_rows: int
    outlier_step: int | None
    nonfinite_rows: int
    """Values that are missing or not finite."""
    infinite_rows: int
    """Of these: plus or minus infinity."""
    outcome_level_first: float | None
    outcome_level_last: float | None
    form_level_first: float | None
    """Weighted level of all other parts, first third."""
    form_level_last: float | None
    outcome_gain: float | None
    """Level of the outcome part, last third less first."""
    form_gain: float | None
    """Weighted level of the other parts, last third less first."""
    total_gain: float | None
    """Weighted level of all parts, last third less first."""
    outcome_share_of_spread: float | None
    """Share of the within-group variance of the total that comes from the outcome, last third."""


@dataclass(frozen=True)
class _Part:
    name: str
    mean: FloatArray
    spread: FloatArray
    size: FloatArray
    """95th percentile of abs."""
    largest: FloatArray
    extreme: FloatArray
    """Rows over half of the step's largest."""
    sign: FloatArray
    """1 where no value is below 0 and some are above it, -1 for the reverse, else 0."""


@tool
def measure_reward_parts(run: Run) -> Measured[Parts]:
    """Level, spread, range and outliers of each reward part, step by step.

    Size: 95th percentile of abs(value) per step. An outlier is a value over ten times the usual
    largest one of the other part of the run (first fifth against the rest), held by few rows of its
    step.

    Cannot tell: why a part turned constant; that takes re-judging, error marks or timing.
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    if len(batches) < 2 * CONSTANT:
        raise NoData(f"rollouts with reward parts of fewer than {2 * CONSTANT} steps")
    steps = [b.step for b in batches]
    rows_of = RowTable.of(run, batches)
    parts = [_part(rows_of, name) for name in batches[0].rewards]
    nonfinite = sum(int((~np.isfinite(rows_of.part(p.name))).sum()) for p in parts)
    infinite = np.any([np.isinf(rows_of.part(p.name)) for p in parts], axis=0)
    infinite_at = int(rows_of.step[infinite].min()) if infinite.any() else None
    outcome = outcome_part(run, batches)
    constant = _constant(parts, steps, outcome)
    scale, scale_at, scale_name = _scale(parts)
    turned = min((at for p in parts if (at := _turned(p)) is not None), default=None)
    outlier, rows, outlier_at, outlier_name = _outlier(run, parts)
    weights = reward_weights(run, len(parts))
    third = max(1, len(steps) // 3)
    by_name = {p.name: p for p in parts}
    main = by_name.get(outcome)
    form_first = form_last = total = None
    if weights is not None and len(parts) > 1:
        rest = [(w, p) for w, p in zip(weights, parts, strict=True) if p.name != outcome]
        form_first = _r(sum(w * p.mean[:third].mean() for w, p in rest))
        form_last = _r(sum(w * p.mean[-third:].mean() for w, p in rest))
        gains = (p.mean[-third:].mean() - p.mean[:third].mean() for p in parts)
        total = _r(sum(w * gain for w, gain in zip(weights, gains, strict=True)))
    found = [s for s in (constant[1], scale_at, turned, outlier_at, infinite_at) if s is not None]
    first = min(found) if found else None
    metrics = Parts(
        n_parts=len(parts),
        n_steps=len(steps),
        constant_part=constant[0] is not None,
        constant_value=constant[2],
        constant_first_step=None if constant[1] is None else steps[constant[1]],
        constant_is_outcome=constant[0] == outcome and constant[0] is not None,
        scale_factor=_r(scale),
        scale_step=None if scale_at is None else steps[scale_at],
        part_turned=turned is not None,
        turned_step=None if turned is None else steps[turned],
        outlier_factor=_r(outlier),
        outlier_rows=rows,
        outlier_step=None if outlier_at is None else steps[outlier_at],
        nonfinite_rows=nonfinite,
        infinite_rows=int(infinite.sum()),
        outcome_level_first=_r(main.mean[:third].mean()) if main else None,
        outcome_level_last=_r(main.mean[-third:].mean()) if main else None,
        form_level_first=form_first,
        form_level_last=form_last,
        outcome_gain=_r(main.mean[-third:].mean() - main.mean[:third].mean()) if main else None,
        form_gain=None if form_last is None else _r(form_last - (form_first or 0.0)),
        total_gain=total,
        outcome_share_of_spread=_spread_share(run, batches[-third:], outcome),
        last_good_step=steps[first - 1] if first else None,
        first_bad_step=None if first is None else steps[first],
        from_start=first == 0,
    )
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 120)).astype(int))
    table = Table(
        title="per step: reward parts",
        columns=("step", *(p.name for p in parts)),
        rows=tuple((steps[i], *(round(float(p.mean[i]), 5) for p in parts)) for i in shown),
        cut_rows=len(steps) - len(shown),
    )
    text = "; ".join(
        f"`{p.name}` {_r3(p.mean[:third].mean())} -> {_r3(p.mean[-third:].mean())}" for p in parts
    )
    if constant[0] is not None and constant[1] is not None:
        text += f"; `{constant[0]}` is constant {constant[2]:g} from step {steps[constant[1]]}"
    if scale_at is not None:
        fold = f"{number(scale, digits=3)}-fold"
        text += f"; the values of `{scale_name}` change {fold} at step {steps[scale_at]}"
    if turned is not None:
        text += f"; a part turns its sign at step {steps[turned]}"
    if outlier_at is not None:
        text += f"; {rows} outlier rows from step {steps[outlier_at]}"
    return Measured(
        metrics,
        text,
        tables=(table,),
        window=(steps[0], steps[-1]),
        signal="single reward parts",
        quote=_which(
            (scale_name if scale_at is not None else ""),
            *(p.name for p in parts if _turned(p) is not None),
            outlier_name,
            *(p.name for p in parts if np.isinf(rows_of.part(p.name)).any()),
        ),
    )


def _which(*names: str) -> str:
    """The parts that changed, as a sentence; empty where none did."""
    told = [f"`{name}`" for name in dict.fromkeys(names) if name]
    if not told:
        return ""
    return f"It is {told[0]}." if len(told) == 1 else f"They are {', '.join(told)}."


def _part(rows: RowTable, name: str) -> _Part:
    """A part's figures per step; 0 in a step in which no row was scored."""
    values = rows.part(name)
    scored = np.isfinite(values)
    absolute = np.abs(values[scored])
    ranked = absolute[np.lexsort((absolute, rows.step[scored]))]
    n = rows.count(scored)
    some = n > 0
    start = np.cumsum(n) - n
    size, largest = np.zeros(len(n)), np.zeros(len(n))
    size[some] = ranked[(start + (0.95 * (n - 1)).astype(np.int64))[some]]
    largest[some] = ranked[(start + n - 1)[some]]
    extreme = rows.count(scored & (np.abs(values) > 0.5 * largest[rows.step]))
    mean, spread = np.nan_to_num(rows.mean(values)), np.nan_to_num(rows.spread(values))
    above, below = rows.count(scored & (values > 0)) > 0, rows.count(scored & (values < 0)) > 0
    sign = (above & ~below).astype(np.float64) - (below & ~above)
    return _Part(name, mean, spread, size, largest, extreme.astype(np.float64), sign)


def _constant(
    parts: list[_Part], steps: list[int], outcome: str
) -> tuple[str | None, int | None, float | None]:
    """The part that lost its spread first: name, index, value. Parts at their top are learned."""
    found = []
    for part in parts:
        flat = part.spread < 1e-9
        if flat.mean() > 0.9 or not flat.any():
            continue
        top = float(part.mean.max())
        for i in range(1, len(flat) - CONSTANT + 1):
            if flat[i : i + CONSTANT].all() and not flat[max(0, i - CONSTANT) : i].any():
                value = float(part.mean[i])
                learned = value >= top - 1e-9 and part.mean[max(0, i - 5) : i].mean() > 0.9 * top
                if not learned and (part.name == outcome or value <= 0):
                    found.append((i, part.name, value))
                break
    if not found:
        return None, None, None
    i, name, value = min(found)
    return name, i, _r(value)


def _scale(parts: list[_Part]) -> tuple[float, int | None, str]:
    """Largest lasting change of a part's range, by factor; parts that are often 0 are left out.

    Both the 95th percentile and the largest value must change, since a right answer that becomes
    rare moves the former alone, and most of the way within a few steps.
    """
    best: tuple[float, int | None, str] = (1.0, None, "")
    for part in parts:
        if (part.size > 0).mean() < 0.8:
            continue
        shift = level_shift(np.log(np.maximum(part.size, 1e-9)), margin=5)
        if shift is None or shift.sds < 3:
            continue
        i = shift.index
        before, after = part.largest[:i], part.largest[i:]
        factors = (
            float(np.exp(abs(shift.after - shift.before))),
            _factor(float(np.median(after)), float(np.median(before))),
        )
        at_once = _factor(
            float(np.median(part.size[i : i + 3])), float(np.median(part.size[i - 3 : i]))
        )
        if np.log(at_once) < AT_ONCE * np.log(factors[0]):
            continue  # it grows with what the rows hold
        if min(factors) > max(best[0], 1.5):
            best = (min(factors), i, part.name)
    return best


def _turned(part: _Part) -> int | None:
    """Index at which a part turns its sign for good: five steps of one, then five of the other."""
    n = CONSTANT
    for i in range(n, len(part.sign) - n + 1):
        before, after = part.sign[i - n : i], part.sign[i : i + n]
        if abs(before.sum()) == n and (after == -before[0]).all():
            return i
    return None


def _factor(a: float, b: float) -> float:
    """The larger over the smaller; 1 where one of them is 0."""
    return max(a, b) / min(a, b) if min(a, b) > 0 else 1.0


def _outlier(run: Run, parts: list[_Part]) -> tuple[float, int, int | None, str]:
    """Largest weighted value over the usual size of the total, rows, first index, and its part.

    What a part gives both in the first fifth of the run and later is how it was built; a value of
    one side alone is held against the other. What many of the early steps hold was learned away.
    """
    found = reward_weights(run, len(parts))
    weights = np.ones(len(parts)) if found is None else np.abs(found)
    n = len(parts[0].largest)
    early = np.arange(n) < max(5, n // 5)
    usual = np.full(n, 1e-9)
    for side in (early, ~early):
        usual[side] = max(
            sum(w * _usual(p, ~side) for w, p in zip(weights, parts, strict=True)), 1e-9
        )
    best, rows, at, name = 1.0, 0, None, ""
    for weight, part in zip(weights, parts, strict=True):
        values = weight * part.largest
        known = np.where(early, values[~early].max(), values[early].max())
        # What many rows of the step come near to is a new scale or was learned, not an outlier.
        over = (values > 10 * np.maximum(usual, known)) & (part.largest > 10 * part.size)
        if over[early].mean() > 0.25:
            over &= ~early
        if over.any():
            first = int(np.argmax(over))
            at = first if at is None else min(at, first)
            largest = float((values / usual)[over].max())
            best, name = max((best, name), (largest, part.name))
            rows += int(part.extreme[over].sum())
    return best, rows, at, name


def _usual(part: _Part, side: BoolArray) -> float:
    """Usual largest value of a part in the steps of one side (N,), or where it has none, in all.

    Steps in which nothing was gained say nothing.
    """
    values = part.largest[side] if part.largest[side].any() else part.largest
    return float(np.median(values[values > 0])) if values.any() else 0.0


def _spread_share(run: Run, batches: list[RolloutBatch], outcome: str) -> float | None:
    rows = RowTable.of(run, batches)
    names = rows.parts
    weights = reward_weights(run, len(names))
    if weights is None or outcome not in names:
        return None
    spreads = [group_spread(np.nan_to_num(rows.part(name)), rows.group) for name in names]
    variances = (weights[:, None] * np.stack(spreads)) ** 2
    total = variances.sum(axis=0)
    vary = (total > 1e-12) & np.isfinite(total)
    share = variances[names.index(outcome)][vary] / total[vary]
    return _r(float(share.mean())) if vary.any() else None


def _r3(value: float) -> str:
    return f"{round(float(value), 3) + 0.0:.3f}"  # adding 0 turns -0.000 into 0.000


def _r(value: float) -> float:
    return round(float(value), 6)
