"""One update that moves the weights by a large part of their size, and the reward after it."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.optimizer.update_size import captured_updates
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

HEAVY = 0.1
"""Share of the weights from which an update is dated."""
AROUND = 5
"""Steps before and after whose rewards are compared."""


class HeavyUpdate(Dated):
    """The largest captured update, dated where it is a tenth of the weights."""

    n_steps: int
    """Captured steps with norms of update and weights."""
    share: float
    """Norm of the largest update over the norm of the weights."""
    rate: float | None
    """Learning rate of its step."""
    reward_before: float | None
    """Mean reward of the step and the four before it: its rollouts are older than the update."""
    reward_after: float | None
    """Mean reward of the five steps after it."""
    reward_kept: float | None
    """After over before; None where the reward before is not above 0."""


@tool
def find_heavy_update(run: Run) -> Measured[HeavyUpdate]:
    """The captured update that is largest for the weights, and the reward before and after it.

    Usual updates are a thousandth of the weights, and a hundredth in a warm-up.

    Cannot tell: anything of updates that were not captured.
    """
    updates = captured_updates(run)
    if not updates:
        raise NoData("no captured steps with norms of update and weights (recorder)")
    worst = max(updates, key=lambda u: u.update / u.weight)
    before, after = _rewards(run, worst.step)
    steps = run.signals.steps
    heavy = worst.update / worst.weight > HEAVY
    from_start = heavy and bool(len(steps)) and worst.step <= steps[0]
    good = [u.step for u in updates if not heavy or u.step < worst.step]
    metrics = HeavyUpdate(
        n_steps=len(updates),
        share=round(worst.update / worst.weight, 6),
        rate=worst.rate,
        reward_before=before,
        reward_after=after,
        reward_kept=_kept(before, after),
        last_good_step=good[-1] if good else None,
        first_bad_step=worst.step if heavy else None,
        from_start=from_start,
        sampled=heavy and not (good and worst.step - good[-1] == 1),
    )
    text = f"largest of {len(updates)} captured updates: {percent(metrics.share)} of the weights"
    if before is not None and after is not None:
        text += f"; reward {number(before)} -> {number(after)} around it"
    return Measured(
        metrics,
        f"{text}, at step {worst.step}",
        window=(updates[0].step, updates[-1].step),
        signal="size of the captured updates",
    )


def _kept(before: float | None, after: float | None) -> float | None:
    return round(after / before, 4) if before and before > 0 and after is not None else None


def _rewards(run: Run, step: int) -> tuple[float | None, float | None]:
    """Mean reward up to a step, and after it."""
    reward = run.signals.get("reward_mean")
    if reward is None:
        return None, None
    before = reward.values[reward.steps <= step][-AROUND:]
    after = reward.values[reward.steps > step][:AROUND]
    means = (round(float(np.mean(v)), 6) if len(v) else None for v in (before, after))
    return next(means), next(means)
