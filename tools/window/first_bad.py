"""First bad step from per-step signals: each against its own robust band, in its bad direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.reward.spikes import find_spike, reward_signals
from firstbad.tools.run import FloatArray, IntArray, Run, Signal
from firstbad.tools.stats import MAD_TO_SD, robust_sd, row_medians

BAND_SDS = 3.0
"""Half width of a signal's band, in robust standard deviations of single steps."""
MEMORY = 40
"""Steps that make the band: long enough for a spread, short enough to follow a slow drift."""
SHORTEST = 10
"""Fewest steps that make a band."""
AFTER = 8
"""Steps that must stay outside (three quarters of them) before a move counts."""

Direction = Literal["down", "up", "both"]
Manner = Literal["abrupt", "gradual", "spike"]


@dataclass(frozen=True)
class Watch:
    """How a signal is watched."""

    direction: Direction
    floor: float
    """Smallest move that counts, in the signal's unit."""
    relative: float = 0.0
    """Smallest move that counts, as a share of the level before."""
    family: str = ""
    drift: float = 0.0
    """Smallest gradual move that counts, where that is more: KL grows in every run that learns."""
    onset: bool = True
    """False: shown, but never sets a window (step time moves for many harmless reasons)."""


WATCHED: dict[str, Watch] = {
    "reward_mean": Watch("down", 0.02, 0.1, "reward"),
    "reward_std": Watch("down", 0.01, 0.5, "contrast"),
    "kl_ref": Watch("up", 0.05, 1.0, "kl", drift=0.1),
    "kl_old": Watch("up", 0.02, 1.0, "kl"),
    "entropy": Watch("both", 0.05, 0.15, "entropy"),
    "grad_norm_preclip": Watch("both", 0.0, 0.75, "norm"),
    "completion_length_mean": Watch("both", 1.0, 0.2, "length"),
    "truncation_rate": Watch("up", 0.05, 0.0, "truncation"),
    "clip_frac_total": Watch("up", 0.05, 0.5, "clip"),
    "ratio_max": Watch("up", 0.1, 0.2, "ratio"),
    "logprob_diff_mean": Watch("up", 0.005, 0.5, "engine"),
    "ess_ratio": Watch("down", 0.03, 0.0, "ess", drift=0.05),
    "step_time": Watch("up", 0.0, 1.0, "timing", onset=False),
}
PART = Watch("down", 0.02, 0.1, "part")


@dataclass(frozen=True)
class Move:
    """A signal that left its band for good."""

    signal: str
    unit: str
    family: str
    last_good: int
    first_bad: int
    manner: Manner
    before: float
    after: float
    widths: float | None
    """Size of the move over the one that the band allows; a spike is held against no band."""
    sets_window: bool


class FirstBad(Dated):
    """Where the run left its own band."""

    is_onset: bool
    is_steady: bool
    n_signals: int
    n_moved: int
    """Signals that left their band and stayed outside."""
    n_steps: int
    reward_fell: bool | None
    part_fell: bool | None
    kl_rose: bool | None
    entropy_moved: bool | None
    norm_moved: bool | None
    length_moved: bool | None
    truncation_rose: bool | None
    ess_fell: bool | None
    """Effective sample size of the weights that correct for the sampler, as a share."""
    outcome_fell: bool | None
    """The reward or one of its parts fell."""
    timing_rose: bool | None
    timing_step: int | None
    """First step at which step time left its band upwards for good; it sets no window."""
    timing_factor: float | None
    """Step time after over before."""
    reward_spiked: bool | None
    """A step's reward is over ten times all before, and comes back (see `find_reward_spikes`)."""
    outcome_end_over_best: float | None
    """Reward at the end over its best level (both medians of ten steps), above its lowest level:
    1 when the end is the best, 0 when everything gained is lost."""


def watched(run: Run) -> Iterator[tuple[Signal, Watch]]:
    """The run's signals that are watched, with how."""
    for name, watch in WATCHED.items():
        if (signal := run.signals.get(name)) is not None:
            yield signal, watch
    for part in run.signals.under("reward_part").values():
        yield part, PART


@tool
def find_first_bad(run: Run) -> Measured[FirstBad]:
    """First step at which a per-step signal leaves its own band and stays outside.

    Each signal is compared with the median and robust spread of the up to 40 steps before, in its
    direction of badness, and must stay outside for three quarters of the next 8 steps. A slow move
    is found by comparing the end with the best level of ten steps, a leap of the reward by
    comparing it with all steps before. `step_time` is shown and never
    sets a window.

    Cannot tell: a fault that was there from the first step, or one that no logged signal shows.
    """
    signals = [(s, w) for s, w in watched(run) if len(s.steps) >= SHORTEST + 3]
    if not signals:
        raise NoData(
            f"no watched signal with at least {SHORTEST + 3} steps; logged and recognised: "
            f"{', '.join(run.signals.known) or 'nothing'}"
        )
    moves = sorted(
        (*_spikes(run), *(m for s, w in signals if (m := find_move(s, w)) is not None)),
        key=lambda m: (m.first_bad, m.manner == "gradual", m.signal),
    )
    setting = [m for m in moves if m.sets_window]
    abrupt = [m for m in setting if m.manner != "gradual"]
    lead = min(setting, key=lambda m: m.first_bad) if setting else None
    if lead is not None and lead.manner == "gradual" and abrupt:
        # A slow move is dated far less sharply than a jump that follows within its memory.
        lead = next((m for m in abrupt if m.first_bad <= lead.first_bad + MEMORY), lead)
    families = {m.family for m in moves}
    logged = {w.family for _, w in signals}

    timing = next((m for m in moves if m.family == "timing"), None)

    def moved(*names: str) -> bool | None:
        return not families.isdisjoint(names) if not logged.isdisjoint(names) else None

    steps = run.signals.steps
    metrics = FirstBad(
        last_good_step=lead.last_good if lead else None,
        first_bad_step=lead.first_bad if lead else None,
        is_onset=lead is not None,
        is_steady=lead is None,
        n_signals=len(signals),
        n_moved=len(setting),
        n_steps=len(steps),
        reward_fell=moved("reward"),
        part_fell=moved("part"),
        kl_rose=moved("kl"),
        entropy_moved=moved("entropy"),
        norm_moved=moved("norm"),
        length_moved=moved("length"),
        truncation_rose=moved("truncation"),
        ess_fell=moved("ess"),
        outcome_fell=moved("reward", "part"),
        timing_rose=moved("timing"),
        timing_step=timing.first_bad if timing else None,
        timing_factor=round(timing.after / timing.before, 3) if timing and timing.before else None,
        reward_spiked="spike" in families if reward_signals(run) else None,
        outcome_end_over_best=_end_over_best(run.signals.get("reward_mean")),
    )
    table = Table(
        title="signals that moved",
        columns=(
            "signal",
            "last good",
            "first bad",
            "manner",
            "before",
            "after",
            "band widths",
            "sets the window",
        ),
        rows=tuple(
            (
                m.signal,
                m.last_good,
                m.first_bad,
                m.manner,
                m.before,
                m.after,
                m.widths,
                m.sets_window,
            )
            for m in moves
        ),
    )
    return Measured(
        metrics,
        _summary(lead, setting, len(signals)),
        tables=(table,),
        window=(int(steps[0]), int(steps[-1])),
        signal=lead.signal if lead else "",
    )


def _summary(lead: Move | None, moves: list[Move], n_signals: int) -> str:
    if lead is None:
        return f"none of {n_signals} signals leaves its own band"
    unit = f" ({lead.unit})" if lead.unit else ""
    if lead.widths is None:
        return (
            f"`{lead.signal}` leaps first at step {lead.first_bad}, and comes back: at most "
            f"{number(lead.before, digits=3)} before, up to {number(lead.after, digits=3)} from "
            f"there on{unit}"
        )
    same = [m.signal for m in moves if m.first_bad == lead.first_bad and m.signal != lead.signal]
    with_it = f" (with {', '.join(f'`{name}`' for name in same)})" if same else ""
    before, after = number(lead.before, digits=3), number(lead.after, digits=3)
    if lead.manner == "abrupt":
        course, how = f"level {before} before, {after} after", "at once"
    else:  # a drift is measured from the best level of the run, where no step stands out
        course, how = f"from its best level, {before}, to {after} at the end", "gradually"
    return (
        f"`{lead.signal}` left its band first, at step {lead.first_bad}{with_it}: {course}{unit}, "
        f"{number(lead.widths, digits=2)} times the move that its band allows, {how}"
    )


def find_move(signal: Signal, watch: Watch) -> Move | None:
    """The first lasting move of a signal out of its band, abrupt or gradual."""
    values = signal.values
    sign = {"down": -1.0, "up": 1.0}.get(watch.direction)
    n = len(values)
    at = np.arange(SHORTEST, n - 2)
    level, ahead, width = _bands(values, at, watch)
    after = np.lib.stride_tricks.sliding_window_view(
        np.concatenate([values, np.full(AFTER, np.nan)]), AFTER
    )[at]
    # Away from the level and from where its trend leads: a steady drift breaks off nowhere.
    far, near = after - level[:, None], after - ahead[:, None]
    side = np.sign(far[:, :1]) if sign is None else sign
    away = np.minimum(far * side, near * side)
    outside = away > width[:, None]
    there = np.isfinite(after).sum(axis=1)
    lasting = outside[:, 0] & (outside.sum(axis=1) >= 0.75 * there)
    if not lasting.any():
        return _slow_move(signal, watch, sign)
    k = int(np.argmax(lasting))
    i, before, landed = int(at[k]), float(level[k]), float(np.nanmedian(after[k]))
    return _move(signal, watch, i, "abrupt", before, landed, abs(landed - before) / width[k])


def _spikes(run: Run) -> Iterator[Move]:
    """The first leap of the reward, which ends too soon to count as a lasting move."""
    signals = reward_signals(run)
    if spike := find_spike(signals):
        yield Move(
            signal=signals[0].source_key,
            unit=signals[0].unit,
            family="spike",
            last_good=spike.last_good,
            first_bad=spike.first_bad,
            manner="spike",
            before=spike.level,
            after=spike.largest,
            widths=None,
            sets_window=True,
        )


def _bands(
    values: FloatArray, at: IntArray, watch: Watch
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Level before each index, level that its trend leads to, and half width of the band."""
    level, ahead, spread = np.empty(len(at)), np.empty(len(at)), np.empty(len(at))
    short = at < MEMORY
    for k in np.flatnonzero(short):
        found = _level_and_spread(values[None, : at[k]])
        level[k], ahead[k], spread[k] = (float(x[0]) for x in found)
    if not short.all():
        windows = np.lib.stride_tricks.sliding_window_view(values, MEMORY)[at[~short] - MEMORY]
        level[~short], ahead[~short], spread[~short] = _level_and_spread(windows)
    floor = np.maximum(max(watch.floor, 1e-12), watch.relative * np.abs(level))
    return level, ahead, np.maximum(BAND_SDS * spread, floor)


def _level_and_spread(windows: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Median, end of the straight line, and robust standard deviation around it, of each row."""
    size = windows.shape[1]
    x = np.arange(size) - (size - 1) / 2
    slope = windows @ x / (x @ x)
    level = row_medians(windows)
    rest = windows - slope[:, None] * x
    middle = row_medians(rest)
    mad = row_medians(np.abs(rest - middle[:, None]))
    spread = MAD_TO_SD * mad
    flat = mad == 0
    spread[flat] = rest[flat].std(axis=1)
    return level, middle + slope * (size / 2 + AFTER / 2), spread


def _slow_move(signal: Signal, watch: Watch, sign: float | None) -> Move | None:
    """A drift away from the best level of the run that no single step shows."""
    if sign is None or len(signal.values) < 4 * SHORTEST:
        return None
    smooth = _rolling_median(signal.values, SHORTEST)
    badness = sign * smooth
    best = int(np.argmin(badness))
    end = float(smooth[-1])
    level = float(smooth[best])
    spread = robust_sd(np.diff(signal.values)) / np.sqrt(2.0)
    width = max(2.0 * spread, watch.floor, watch.drift, 2 * watch.relative * abs(level), 1e-12)
    if sign * (end - level) <= width or best >= len(smooth) - SHORTEST:
        return None
    if np.median(badness[best + SHORTEST :]) <= badness[best] + width / 2:
        return None  # it was away only at the very end
    inside = np.flatnonzero(badness[best:] <= badness[best] + width / 2)
    turn = best + int(inside[-1]) + 1
    at = min(turn + SHORTEST // 2, len(signal.values) - 1)
    return _move(signal, watch, at, "gradual", level, end, abs(end - level) / width)


def _rolling_median(values: FloatArray, size: int) -> FloatArray:
    return row_medians(np.lib.stride_tricks.sliding_window_view(values, size))


def _move(
    signal: Signal,
    watch: Watch,
    index: int,
    manner: Manner,
    before: float,
    after: float,
    widths: float,
) -> Move:
    return Move(
        signal=signal.source_key,
        unit=signal.unit,
        family=watch.family,
        last_good=int(signal.steps[index - 1]),
        first_bad=int(signal.steps[index]),
        manner=manner,
        before=before,
        after=after,
        widths=round(widths, 3),
        sets_window=watch.onset,
    )


def _end_over_best(signal: Signal | None) -> float | None:
    if signal is None or len(signal.values) < 3 * SHORTEST:
        return None
    smooth = _rolling_median(signal.values, SHORTEST)
    low, high = float(smooth.min()), float(smooth.max())
    return None if high - low < 1e-9 else round((float(smooth[-1]) - low) / (high - low), 4)
