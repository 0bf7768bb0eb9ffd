"""Completion lengths: the cap, truncation, and who grows (right or wrong answers)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.groups import outcome_part
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_correlation, group_spread, reward_weights
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, IntArray, Run, Signal
from firstbad.tools.segments import HeldToSettings, since, stated_from
from firstbad.tools.stats import Shift, level_shift
from firstbad.tools.token_counts import TokenCounts

PAYS, GROWS = 0.4, 1.3
"""Within-group correlation with length, and growth of the length, that count as pay for length."""


class Truncation(HeldToSettings):
    """Share of cut completions, and where lengths stand against the cap."""

    n_steps: int
    cap: float | None
    truncated_start: float
    """Mean share over the first tenth, of three steps at least."""
    truncated_first: float
    """... over the first third."""
    truncated_last: float
    truncated_largest: float
    reaches_cap: bool
    """As many answers as count as cut in the first third can be as long as the cap, by the mean
    length. False: what counts as cut is not; True also where length or cap is not known."""
    truncated_before: float | None
    """Before the share rises at once, over all launches, and after it; None where it does not."""
    truncated_after: float | None
    cap_fell: bool | None
    """Where it rises: no completion is as long any more as some were just before, so the cap came
    down. None where it does not rise, or no largest length is logged."""
    longest_before: float | None
    """Tokens of the longest completion of the ten steps before the rise, and of all since it; None
    where `cap_fell` is."""
    longest_after: float | None
    length_over_cap: float | None
    """Mean length over the cap, last third."""
    masked_by_config: bool | None
    """Truncated completions are left out of the loss (`mask_truncated_completions`)."""


@tool
def check_truncation(run: Run) -> Measured[Truncation]:
    """Share of completions that end without a stop token, against the completion cap.

    Where launches state different caps, only the last one is measured.

    Cannot tell: a cap that is right for rambling answers from one that cuts good ones; read the
    rows.
    """
    whole = run
    held_from = stated_from(run, "max_completion_length")
    if held_from is not None:
        run = since(run, held_from)
    rate = run.signals.get("truncation_rate")
    if rate is None or len(rate.values) < 5:
        raise NoData("no logged share of truncated completions")
    length = run.signals.get("completion_length_mean")
    cap = run.config.number("max_completion_length")
    at = _rise(rate)
    rise = _rise(whole.signals.known[rate.name])
    longest = None if rise is None else _longest(whole, rise)
    fell = None if longest is None else longest[1] < longest[0]
    if fell:  # that one launch has another cap than the one before is what it is about
        rate, at, held_from = whole.signals.known[rate.name], rise, None
    first, _, last = (float(v.mean()) for v in np.array_split(rate.values, 3))
    at_first = float(rate.values[: max(3, len(rate.values) // 10)].mean())
    start = at_first > 0.5
    metrics = Truncation(
        n_steps=len(rate.values),
        cap=cap,
        truncated_start=_r(at_first),
        truncated_first=_r(first),
        truncated_last=_r(last),
        truncated_largest=_r(float(rate.values.max())),
        reaches_cap=_reaches(length, cap, first),
        truncated_before=_r(rise.before) if rise else None,
        truncated_after=_r(rise.after) if rise else None,
        cap_fell=fell,
        longest_before=longest[0] if longest else None,
        longest_after=longest[1] if longest else None,
        length_over_cap=_over(length, cap),
        masked_by_config=run.config.flag("mask_truncated_completions"),
        last_good_step=int(rate.steps[at.earliest - 1]) if at and not start else None,
        first_bad_step=int(rate.steps[at.latest if at and not start else 0])
        if at or start
        else None,
        from_start=start and held_from is None,
        settings_from_step=held_from,
        sampled=at is not None and not start and at.earliest < at.latest,
    )
    levels = f"{percent(first)} -> {percent(last)} (first and last third)"
    if fell and rise:
        levels = f"{percent(rise.before)} -> {percent(rise.after)} at step {metrics.first_bad_step}"
    return Measured(
        metrics,
        f"cut completions {levels}" + (f", cap {cap:g} tokens at the end" if cap else ""),
        signal="share of cut completions",
    )


def _reaches(length: Signal | None, cap: float | None, share: float) -> bool:
    """Whether a share of answers as long as the cap fits into the mean length."""
    if length is None or not cap or len(length.values) < 3:
        return True
    return float(np.array_split(length.values, 3)[0].mean()) > 0.8 * share * cap


def _rise(rate: Signal) -> Shift | None:
    """Where the share of cut answers rises at once to more than a third or so, or None."""
    shift = level_shift(rate.values, margin=min(5, len(rate.values) // 2))
    rises = shift is not None and shift.after > 0.3 and shift.after > 2 * shift.before + 0.1
    return shift if rises else None


def _longest(run: Run, rise: Shift) -> tuple[float, float] | None:
    """Tokens of the longest completion of the ten steps before a rise, and of all steps since."""
    longest = run.signals.get("completion_length_max")
    if longest is None:
        return None
    step = run.signals.known["truncation_rate"].steps[rise.latest]
    before = longest.values[longest.steps < step][-10:]
    after = longest.values[longest.steps >= step]
    return (float(before.max()), float(after.max())) if len(before) and len(after) else None


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


def _over(length: Signal | None, cap: float | None) -> float | None:
    if length is None or not cap or len(length.values) < 3:
        return None
    return _r(float(np.array_split(length.values, 3)[2].mean()) / cap)


def _r(value: float) -> float:
    return round(float(value), 6)
