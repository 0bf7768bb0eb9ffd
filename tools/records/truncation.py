"""Completions that are cut: the completion cap, and how many end without a stop token."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run, Signal
from firstbad.tools.segments import HeldToSettings, since, stated_from
from firstbad.tools.stats import Shift, level_shift


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


def _over(length: Signal | None, cap: float | None) -> float | None:
    if length is None or not cap or len(length.values) < 3:
        return None
    return _r(float(np.array_split(length.values, 3)[2].mean()) / cap)


def _r(value: float) -> float:
    return round(float(value), 6)
