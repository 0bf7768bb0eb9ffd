"""Ratio and clip figures: can old and new log-probs be compared before any update?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from firstbad.tools.completeness import expected_rows, rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import FloatArray, IntArray, Run, Signal
from firstbad.tools.segments import OF_THE_UPDATES, HeldToSettings, held_to_settings
from firstbad.tools.stats import first_of_run
from firstbad.tools.updates import first_updates, updates_per_batch

RATIO_NOISE = 1e-3
"""A ratio this near 1 counts as 1 (float32 log-probs)."""
Logged = dict[str, Signal | None]
ENGINE = ("logprob_diff_mean", "engine_kl", "prob_diff_mean", "logprob_diff_sequence")
"""Signals that compare the rollout engine with the trainer, most telling first."""


class Ratios(HeldToSettings):
    """Ratio and clip hits against what the number of updates per batch allows."""

    updates_per_batch: float | None
    """Optimizer steps that train on one rollout batch; 1 makes every ratio exactly 1."""
    engine_used: bool | None
    """A separate rollout engine generates (`use_vllm` and the like)."""
    ratio_logged: bool
    """Ratios or clip fractions are logged."""
    ratio_largest_deviation: float | None
    """Largest abs(ratio - 1) logged, over all steps."""
    clip_largest: float | None
    """Largest clip fraction logged."""
    steps_before_update: int | None
    """Logged steps that hold no update but the first on their rollouts, whose ratios must be 1."""
    steps_off_before_update: int | None
    """Those of them with a ratio off 1 or a clip hit."""
    share_off_before_update: float | None
    deviation_before_update: float | None
    """Largest abs(ratio - 1) logged there, median over those that are off."""
    clip_before_update: float | None
    """Clip fraction there, mean over those that are off."""
    one_before_update: bool | None
    """Each ratio logged there is 1 to the last digit; None where none is logged."""
    off_at_step_1: bool | None
    """Off at step 1, where no weights but the first exist."""
    engine_difference_early: float | None
    """Mean abs(log-prob difference) of engine and trainer, median of the first third (nats)."""
    engine_difference_late: float | None
    engine_difference_growth: float | None
    """Late over early."""
    engine_kl_late: float | None
    """k3 divergence of engine and trainer, nats per token, median of the last third."""
    engine_probability_late: float | None
    """Mean abs(difference of probabilities) of engine and trainer: no nats."""
    engine_sequence_late: float | None
    """Mean over sequences of abs(difference of their mean log-probs), nats."""
    clip_mean_late: float | None
    """Mean clip fraction of the last third."""
    ratio_deviation_late: float | None
    """Median over the last third of the step's largest abs(ratio - 1)."""


@tool
@held_to_settings(*OF_THE_UPDATES)
def check_ratios(run: Run) -> Measured[Ratios]:
    """Ratios and clip fractions against what the number of updates per batch allows.

    In the first update on a rollout batch, with log-probs of one implementation, every ratio is
    exactly 1 and every clip fraction 0: normal, and no sign of a policy that doesn't learn. A
    deviation proves that old and new log-probs are not measured alike or come from other weights.
    Where a batch is updated several times, those steps are found by the settings and the rollouts.

    Cannot tell: whether the sampler is the trainer's policy (see `test_surprise`).
    """
    signals = {
        name: run.signals.get(name)
        for name in ("ratio_max", "ratio_min", "ratio_mean", "clip_frac_total", "clip_frac_high")
    }
    engine, *others = (run.signals.get(name) for name in ENGINE)
    updates = updates_per_batch(run)
    if not any((*signals.values(), engine, *others)) and updates is None:
        raise NoData("no ratio, clip fraction or engine difference logged, and no config")
    first_of = _first_updates(run, signals)
    off = None if first_of is None else _off_steps(first_of)
    first = off[0] if off else None
    told_by = run.signals.steps if first_of is None else _steps_of(first_of)
    n_first = len(told_by)
    deviations = _deviations(signals)
    deviation = None if deviations is None else deviations.values
    clip = signals["clip_frac_total"] or signals["clip_frac_high"]
    steps = run.signals.steps
    metrics = Ratios(
        updates_per_batch=updates,
        engine_used=run.config.flag("use_vllm"),
        ratio_logged=any(signals.values()),
        ratio_largest_deviation=_largest(deviation),
        clip_largest=_largest(clip.values if clip else None),
        steps_before_update=None if off is None else n_first,
        steps_off_before_update=None if off is None else len(off),
        share_off_before_update=None if off is None else round(len(off) / max(1, n_first), 6),
        deviation_before_update=_at(off, deviations, np.median),
        clip_before_update=_at(off, clip, np.mean),
        one_before_update=None if first_of is None else _all_one(first_of),
        off_at_step_1=None if off is None or 1 not in steps else 1 in off,
        engine_difference_early=_third(engine, 0),
        engine_difference_late=_third(engine, 2),
        engine_difference_growth=_growth(engine),
        engine_kl_late=_third(others[0], 2),
        engine_probability_late=_third(others[1], 2),
        engine_sequence_late=_third(others[2], 2),
        clip_mean_late=_third(clip, 2, mean=True),
        ratio_deviation_late=(
            round(float(np.median(deviation[-max(1, len(deviation) // 3) :])), 6)
            if deviation is not None and len(deviation)
            else None
        ),
        last_good_step=_before(told_by.tolist(), first),
        first_bad_step=first,
        from_start=first is not None and first <= int(steps[0]) + 2,
    )
    told = "updates per batch unknown" if updates is None else f"updates per batch: {updates:g}"
    if off is not None:
        which = "" if n_first == len(steps) else " that make the first update on their rollouts"
        told += f"; {len(off)} of {n_first} steps{which} with a ratio off 1 or a clip hit"
    told += _engine(metrics)
    if metrics.ratio_largest_deviation is not None:
        told += f"; ratios lie within {number(metrics.ratio_largest_deviation, digits=3)} of 1"
    return Measured(metrics, told, signal="ratio before any update" if first else "")


def _engine(m: Ratios) -> str:
    """Engine against trainer, in what is logged of it."""
    nats = "{:.3g} nats"
    parts = [
        ("mean difference", m.engine_difference_late, nats),
        ("k3", m.engine_kl_late, nats),
        ("difference of probabilities", m.engine_probability_late, "{:.3g}"),
        ("difference of sequence means", m.engine_sequence_late, nats),
    ]
    told = [f"{name} {form.format(value)}" for name, value, form in parts if value is not None]
    return f"; engine against trainer: {', '.join(told)}" if told else ""


def _deviations(signals: Logged) -> Signal | None:
    """Largest abs(ratio - 1) of each step."""
    found = [s for n, s in signals.items() if s is not None and n.startswith("ratio")]
    if not found:
        return None
    steps = np.unique(np.concatenate([s.steps for s in found]))
    largest = np.zeros(len(steps))
    for signal in found:
        at = np.searchsorted(steps, signal.steps)
        largest[at] = np.maximum(largest[at], np.abs(signal.values - 1.0))
    return replace(found[0], steps=steps, values=largest)


def _all_one(signals: Logged) -> bool | None:
    """Whether each ratio is 1 but for the rounding of float32."""
    rest = _deviations(signals)
    return None if rest is None or not len(rest.values) else bool(rest.values.max() < 1e-6)


def _first_updates(run: Run, signals: Logged) -> Logged | None:
    """The signals at steps that make the first update on their rollouts; None without any."""
    logged = _steps_of(signals)
    first = first_updates(run, logged) if len(logged) else None
    if first is None or not first.any():
        return None
    kept = {}
    for name, signal in signals.items():
        at = None if signal is None else np.isin(signal.steps, logged[first])
        kept[name] = (
            None
            if signal is None or at is None
            else replace(signal, steps=signal.steps[at], values=signal.values[at])
        )
    return kept


def _steps_of(signals: Logged) -> IntArray:
    found = [s.steps for s in signals.values() if s is not None]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _at(
    steps: list[int] | None, signal: Signal | None, mean: Callable[[FloatArray], np.floating[Any]]
) -> float | None:
    """Mean or median of a signal over steps; None where nothing of it is logged there."""
    values = (
        None if steps is None or signal is None else signal.values[np.isin(signal.steps, steps)]
    )
    return None if values is None or not len(values) else round(float(mean(values)), 6)


def _off_steps(signals: Logged) -> list[int]:
    off: set[int] = set()
    for name, signal in signals.items():
        if signal is None:
            continue
        rest = signal.values if name.startswith("clip") else signal.values - 1.0
        off.update(int(s) for s in signal.steps[np.abs(rest) > RATIO_NOISE])
    ordered = sorted(off)
    if not ordered:
        return []
    # A single stray step is noise of the logger; a fault shows in three steps of a row.
    every = _steps_of(signals).tolist()
    start = first_of_run([s in off for s in every], length=min(3, len(every)))
    return [] if start is None else [s for s in ordered if s >= every[start]]


def _largest(values: FloatArray | None) -> float | None:
    return None if values is None or not len(values) else round(float(np.max(values)), 6)


def _third(signal: Signal | None, which: int, *, mean: bool = False) -> float | None:
    if signal is None or len(signal.values) < 3:
        return None
    part = np.array_split(signal.values, 3)[which]
    return round(float(np.mean(part) if mean else np.median(part)), 6)


def _growth(engine: Signal | None) -> float | None:
    early, late = _third(engine, 0), _third(engine, 2)
    return round(late / early, 4) if early and late is not None else None


def _before(steps: list[int], first: int | None) -> int | None:
    earlier = [s for s in steps if first is None or s < first]
    return earlier[-1] if earlier else None


class MicrobatchRows:
    """Rows of one micro-batch: by the step's own rows where all are written, else by config."""

    def __init__(self, run: Run) -> None:
        """Decide once whether the rows written are those trained on."""
        self._rollouts = run.rollouts
        self._written = frozenset(run.rollouts.steps.tolist())
        self._configured = run.config.number("per_device_train_batch_size") or None
        self._share: float | None = None
        generated = expected_rows(run)
        if generated and self._configured and rows_complete(run):
            self._share = self._configured / generated

    def of_steps(self, rows: RowTable) -> FloatArray:
        """(S,) rows at each step of a table; NaN where the config doesn't say."""
        if self._share is not None:
            return rows.size.astype(np.float64) * self._share
        return np.full(len(rows.steps), self._configured or np.nan)

    def at(self, step: int) -> float | None:
        """Rows at a step; None where the config doesn't say how many micro-batches there are."""
        if self._share is not None and step in self._written:
            return len(self._rollouts.batch(step)) * self._share
        return self._configured
