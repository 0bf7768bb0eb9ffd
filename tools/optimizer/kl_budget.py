"""Is the policy pinned to its reference? Used share of the KL budget."""

from __future__ import annotations

import numpy as np

from firstbad.tools.completeness import whole_rows
from firstbad.tools.errors import NoData
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_spread, total_reward
from firstbad.tools.run import Run
from firstbad.tools.segments import HeldToSettings, since, stated_from
from firstbad.tools.stats import gain_of_thirds

LOOSE = 0.1
"""Nats per token that leave a policy room to move."""
PINNED = 0.5
"""Used share beyond which the run counts as pinned, and that from its first step."""


class KlBudget(HeldToSettings):
    """How much of the KL that a converged policy may spend is spent."""

    beta: float
    used_share: float
    """2 beta^2 KL_seq / E[A^2], last third; near 1: pinned."""
    kl_late: float
    """Nats per token."""
    beta_loose: float
    """Weight at which a converged policy would spend 0.1 nats per token."""
    reward_gain: float
    """Reward of the last third less that of the first."""
    reward_gain_z: float
    """... in standard errors, autocorrelation allowed for."""
    contrast: float
    """Share of groups whose rewards spread, last third."""
    kl_share_of_loss: float | None
    """Median abs(beta KL) over median abs(loss), last third."""


@tool
def measure_kl_budget(run: Run) -> Measured[KlBudget]:
    """Used share of the KL budget: 2 beta^2 KL per sequence over the mean squared advantage.

    A converged KL-regularised policy has KL per sequence of about E[A^2] / (2 beta^2), so a share
    near 1 with flat reward and contrast left means that beta holds the policy in place.

    Where launches state different weights, only the last one is measured.

    Cannot tell: anything while probabilities have not passed; the share rises in wrecked runs too.
    """
    beta = run.config.number("beta")
    start = stated_from(run, "beta")
    if start is not None:
        run = since(run, start)
    kl = run.signals.get("kl_ref")
    length = run.signals.get("completion_length_mean")
    reward = run.signals.get("reward_mean")
    if not beta:
        raise NoData("no KL weight (`beta` is 0 or not stated)")
    if (
        kl is None
        or length is None
        or reward is None
        or min(len(kl.values), len(reward.values)) < 9
    ):
        raise NoData("KL, length and reward are not all logged")
    squares, spreads = [], []
    for batch in run.rollouts.batches(run.rollouts.steps[-max(1, len(run.rollouts.steps) // 3) :]):
        total = total_reward(run, batch)
        if batch.advantage is None or total is None or not np.isfinite(batch.advantage).any():
            continue
        squares.append(float(np.nanmean(batch.advantage**2)))
        whole = whole_rows(run, batch)
        if len(whole) and (total := total_reward(run, whole)) is not None:
            spreads.append(float(np.mean(group_spread(total, whole.group) > 1e-4)))
    if not squares or not spreads:
        raise NoData("no rollouts with advantages and whole groups in the last third")
    late = float(np.array_split(kl.values, 3)[2].mean())
    tokens = float(np.array_split(length.values, 3)[2].mean())
    gain, gain_z = gain_of_thirds(reward.values)
    loss = run.signals.get("loss")
    share = None
    if loss is not None and len(loss.values) >= 3:
        size = float(np.median(np.abs(np.array_split(loss.values, 3)[2])))
        share = round(beta * late / size, 4) if size > 0 else None
    used = 2 * beta**2 * late * tokens / max(1e-9, float(np.mean(squares)))
    loose = float(np.sqrt(float(np.mean(squares)) / (2 * LOOSE * tokens))) if tokens else beta
    metrics = KlBudget(
        beta=beta,
        beta_loose=float(f"{loose:.2g}"),
        used_share=round(used, 6),
        kl_late=round(late, 6),
        reward_gain=round(gain, 6),
        reward_gain_z=round(gain_z, 3),
        contrast=round(float(np.mean(spreads)), 6),
        kl_share_of_loss=share,
        first_bad_step=int(kl.steps[0]) if used > PINNED else None,
        from_start=used > PINNED and start is None,
        settings_from_step=start,
    )
    return Measured(
        metrics,
        f"KL weight {beta:g}, KL {number(late, digits=3)} nats per token: {percent(used)} of the "
        "KL budget is used; from the first to the last third the reward moves by "
        f"{gain:+.3g}, {gain_z:+.1f} standard errors",
        signal="share of the KL budget",
    )
