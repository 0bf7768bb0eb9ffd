"""Ratio and clip figures: can old and new log-probs be compared before any update?"""

from __future__ import annotations

import numpy as np

from firstbad.tools.completeness import expected_rows, rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import FloatArray, Run, Signal
from firstbad.tools.segments import OF_THE_UPDATES, HeldToSettings, held_to_settings
from firstbad.tools.stats import first_of_run

RATIO_NOISE = 1e-3
"""A ratio this near 1 counts as 1 (float32 log-probs)."""
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
    steps_off_before_update: int | None
    """Steps with a ratio off 1 or a clip hit although one update per batch forbids it."""
    share_off_before_update: float | None
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

    With one update per rollout batch and log-probs of one implementation every ratio is exactly 1
    and every clip fraction 0: normal, and no sign of a policy that doesn't learn. A deviation
    proves that old and new log-probs are not measured alike or come from other weights.

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
    exact = updates is not None and updates <= 1 and any(signals.values())
    off = _off_steps(signals) if exact else None
    first = off[0] if off else None
    deviation = _deviation(signals)
    clip = signals["clip_frac_total"] or signals["clip_frac_high"]
    steps = run.signals.steps
    metrics = Ratios(
        updates_per_batch=updates,
        engine_used=run.config.flag("use_vllm"),
        ratio_logged=any(signals.values()),
        ratio_largest_deviation=_largest(deviation),
        clip_largest=_largest(clip.values if clip else None),
        steps_off_before_update=len(off) if off is not None else None,
        share_off_before_update=round(len(off) / max(1, len(steps)), 6)
        if off is not None
        else None,
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
        last_good_step=_before(steps.tolist(), first),
        first_bad_step=first,
        from_start=first is not None and first <= int(steps[0]) + 2,
    )
    told = "updates per batch unknown" if updates is None else f"updates per batch: {updates:g}"
    if off is not None:
        told += f"; {len(off)} of {len(steps)} steps with a ratio off 1 or a clip hit"
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


def updates_per_batch(run: Run) -> float | None:
    """Optimizer steps per rollout batch: steps per generation x passes / accumulation steps."""
    stated = run.config.number("updates_per_batch")
    accumulation = run.config.number("gradient_accumulation_steps")
    if stated or not accumulation:
        return stated
    per_generation = run.config.number("steps_per_generation") or accumulation
    passes = run.config.number("num_iterations") or 1.0
    return per_generation * passes / accumulation


def _deviation(
    signals: dict[str, Signal | None],
) -> FloatArray | None:
    high, low, mean = signals["ratio_max"], signals["ratio_min"], signals["ratio_mean"]
    found = [np.abs(s.values - 1.0) for s in (high, low, mean) if s is not None]
    if not found:
        return None
    n = min(len(f) for f in found)
    largest: FloatArray = np.max(np.stack([f[:n] for f in found]), axis=0)
    return largest


def _off_steps(signals: dict[str, Signal | None]) -> list[int]:
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
    every = sorted({int(s) for sig in signals.values() if sig is not None for s in sig.steps})
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
