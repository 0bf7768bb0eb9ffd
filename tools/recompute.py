"""Logged means recomputed from rollouts: does the dashboard say what its names say?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import expected_rows, group_spread, total_reward
from firstbad.tools.run import RolloutBatch, Run, Signal

TOLERANCE = 2e-3
"""Logged means are float32, some sources print four digits."""


class Recomputed(Dated):
    """Logged against recomputed."""

    rows_complete: bool | None
    """Steps hold as many rows as the config generates, so that a mean over them is the mean."""
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
    share_differs_trained: float
    """The same share when the mean is taken over the rows with an advantage, as where groups
    without contrast are dropped before training; 1 where no advantages are written."""
    largest_difference: float
    zero_std_logged_mean: float | None
    zero_std_recomputed_mean: float | None
    zero_std_differs: bool | None
    """Logged share of zero-variance groups differs from the one recomputed with a tolerance of
    1e-4: float32 spread of equal rewards exceeds the 1e-8 that some frameworks test with."""
    reward_std_is_global: bool | None


@tool
def recompute_means(run: Run) -> Measured[Recomputed]:
    """Logged reward means and spreads against the same figures recomputed from the rollouts.

    Means over all rows of a step; the total is the weighted sum of the parts with the weights of
    the config. Compared only where every step is logged, since a window mean can't be recomputed
    from its last batch.

    Cannot tell: which of the two is wrong; read the rows shown.
    """
    if not run.rollouts:
        raise NoData("no rollouts to recompute the logged means from")
    every = run.config.number("logging_steps")
    if every is not None and every > 1:
        raise NoData(f"metrics are averaged over {every:g} steps (`logging_steps`)")
    pairs: dict[str, list[tuple[int, float, float]]] = {}
    trained: dict[str, list[tuple[int, float, float]]] = {}
    zero: list[tuple[float, float]] = []
    stds: list[tuple[float, float, float]] = []
    for batch in run.rollouts.batches():
        for name, value in _means(run, batch).items():
            logged = _logged(run, name, batch.step)
            if logged is not None and value is not None:
                pairs.setdefault(name, []).append((batch.step, logged, value))
                if (kept := _over_trained(run, batch, name)) is not None:
                    trained.setdefault(name, []).append((batch.step, logged, kept))
        _add_spread(run, batch, zero, stds)
    if not pairs:
        raise NoData("rollouts and metrics share no step with a recomputable figure")
    differ = {name: _differing(found) for name, found in pairs.items()}
    n = sum(len(found) for found in pairs.values())
    worst = max(pairs, key=lambda name: len(differ[name]) / len(pairs[name]))
    bad = sorted((step, name, a, b) for name, rows in differ.items() for step, a, b in rows)
    first = bad[0][0] if bad else None
    steps = sorted({step for found in pairs.values() for step, _, _ in found})
    good = [s for s in steps if first is None or s < first]
    z = np.array(zero, float).reshape(-1, 2)
    metrics = Recomputed(
        rows_complete=_complete(run),
        n_compared=n,
        n_signals=len(pairs),
        share_differs=round(len(bad) / n, 6),
        worst_signal_share=round(len(differ[worst]) / len(pairs[worst]), 6),
        share_differs_shifted=round(_shifted(pairs[worst]), 6),
        share_differs_trained=round(len(_differing(trained[worst])) / len(trained[worst]), 6)
        if worst in trained
        else 1.0,
        largest_difference=round(max(abs(a - b) for f in pairs.values() for _, a, b in f), 6),
        zero_std_logged_mean=round(float(z[:, 0].mean()), 6) if len(z) else None,
        zero_std_recomputed_mean=round(float(z[:, 1].mean()), 6) if len(z) else None,
        zero_std_differs=bool(np.abs(z[:, 0] - z[:, 1]).mean() > 0.01) if len(z) else None,
        reward_std_is_global=_is_global(stds),
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
        + (f", most often `{worst}` from step {first}" if bad else ""),
        tables=(table,) if bad else (),
        sources=run.rollouts.sources,
        signal=f"logged {worst}" if bad else "",
    )


def _differing(pairs: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    limit = _tolerance(pairs)
    return [p for p in pairs if abs(p[1] - p[2]) > limit * (1 + abs(p[2]))]


def _tolerance(pairs: list[tuple[int, float, float]]) -> float:
    """Half a unit of the last digit that the log writes, and never below the common tolerance."""
    logged = np.array([p[1] for p in pairs])
    for digits in range(4):
        if np.allclose(logged * 10**digits, np.round(logged * 10**digits), atol=1e-6):
            return max(TOLERANCE, 0.51 * 10.0**-digits)
    return TOLERANCE


def _shifted(pairs: list[tuple[int, float, float]]) -> float:
    logged, value = np.array([p[1:] for p in pairs]).T
    limit = _tolerance(pairs)
    shares = [
        float((np.abs(a - b) > limit * (1 + np.abs(b))).mean())
        for a, b in ((logged[1:], value[:-1]), (logged[:-1], value[1:]))
        if len(a)
    ]
    return min(shares, default=1.0)


def _over_trained(run: Run, batch: RolloutBatch, name: str) -> float | None:
    if batch.advantage is None or not (kept := np.abs(batch.advantage) > 1e-6).any():
        return None
    part = batch.rewards.get(name.removeprefix("reward_part/"))
    values = total_reward(run, batch) if part is None else part
    if values is None or not np.isfinite(values[kept]).any():
        return None
    return float(np.nanmean(values[kept]))


def _means(run: Run, batch: RolloutBatch) -> Mapping[str, float | None]:
    parts = {f"reward_part/{n}": v for n, v in batch.rewards.items()}
    total = total_reward(run, batch)
    unscored = any(not np.isfinite(v).all() for v in batch.rewards.values())
    if total is not None and not unscored:  # how frameworks fill gaps in a total differs
        parts["reward_mean"] = total
    return {
        name: float(np.nanmean(v)) if np.isfinite(v).any() else None for name, v in parts.items()
    }


def _complete(run: Run) -> bool | None:
    generated = expected_rows(run)
    rows = [len(b) for b in run.rollouts.batches()]
    return None if generated is None or not rows else int(np.median(rows)) >= generated


def _logged(run: Run, name: str, step: int) -> float | None:
    signal: Signal | None = run.signals.get(name)
    return signal.at(step) if signal else None


def _add_spread(
    run: Run,
    batch: RolloutBatch,
    zero: list[tuple[float, float]],
    stds: list[tuple[float, float, float]],
) -> None:
    total = total_reward(run, batch)
    if total is None or not np.isfinite(total).all():
        return
    spread = group_spread(total, batch.group)
    logged = _logged(run, "frac_zero_variance_groups", batch.step)
    if logged is not None:
        zero.append((logged, float(np.mean(spread < 1e-4))))
    std = _logged(run, "reward_std", batch.step)
    if std is not None and len(total) > 1:
        stds.append((std, float(np.std(total, ddof=1)), float(np.mean(spread))))


def _is_global(stds: list[tuple[float, float, float]]) -> bool | None:
    """Whether the logged `reward_std` fits the batch's spread better than the groups' mean."""
    if len(stds) < 5:
        return None
    s = np.array(stds)
    return bool(np.abs(s[:, 0] - s[:, 1]).mean() < np.abs(s[:, 0] - s[:, 2]).mean())
