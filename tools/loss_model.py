"""The loss as its parts: advantage term, KL term, declared entropy term, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.run import FloatArray, RolloutBatch, Run
from firstbad.tools.token_counts import TokenCounts

TOKEN_MEAN = {"dapo", "bnpo"}
"""Losses whose value at ratio 1 is the token mean of -A (CISPO's is that of -A logp)."""


@dataclass(frozen=True)
class LossTerms:
    """The parts over N steps, each (N,)."""

    steps: FloatArray
    logged: FloatArray
    policy: FloatArray
    kl: FloatArray
    """beta x logged KL, zeros where there is none."""
    entropy: FloatArray | None

    def cut(self, part: slice) -> LossTerms:
        """A part of the steps."""
        entropy = None if self.entropy is None else self.entropy[part]
        return LossTerms(
            self.steps[part], self.logged[part], self.policy[part], self.kl[part], entropy
        )

    @property
    def predicted(self) -> FloatArray:
        """Recomputed loss."""
        return self.policy + self.kl


def collect_terms(run: Run, *, fewest: int) -> tuple[LossTerms, TokenCounts]:
    """Recompute the parts of the loss at every step with fresh rollouts.

    Raises:
        NoData: no loss, no advantages, or fewer than `fewest` steps with both.
    """
    loss, kl, entropy = (run.signals.get(n) for n in ("loss", "kl_ref", "entropy"))
    if loss is None:
        raise NoData("no logged loss")
    if not run.config.of_trainer:
        raise NoData("no trainer config: loss type and KL weight are not known")
    every = run.config.number("logging_steps")
    if every is not None and every > 1:
        raise NoData(f"the loss is averaged over {every:g} steps (`logging_steps`)")
    batches = [b for b in run.rollouts.batches() if b.advantage is not None]
    if not batches:
        raise NoData("no rollouts with advantages")
    beta = run.config.number("beta") or 0.0
    counts = TokenCounts(run, batches)
    rows = []
    for batch in batches:
        logged = loss.at(batch.step)
        k = kl.at(batch.step) if kl is not None else 0.0
        h = entropy.at(batch.step) if entropy is not None else None
        policy, scale = _policy_loss(run, batch, trained_tokens(run, batch, counts))
        if logged is None or policy is None or k is None:
            continue
        if h is not None:
            logged += (run.config.number("entropy_coef") or 0.0) * h  # a declared bonus
        rows.append((batch.step, logged, policy, beta * k * scale, math.nan if h is None else h))
    table = np.array(rows, float).reshape(-1, 5)
    if len(table) < fewest:
        raise NoData(
            f"{len(table)} steps with both a logged loss and the advantages of its rollouts; "
            f"at least {fewest} are needed"
        )
    return (
        LossTerms(
            table[:, 0],
            table[:, 1],
            table[:, 2],
            table[:, 3],
            None if np.isnan(table[:, 4]).any() else table[:, 4],
        ),
        counts,
    )


def trained_tokens(run: Run, batch: RolloutBatch, counts: TokenCounts) -> FloatArray:
    """(R,) trained tokens per row: completion tokens, corrected by the logged trained count.

    Where more or fewer tokens are trained than the completions have, that is a fault of the masks;
    the denominator of the loss counts what was trained all the same. A surplus that fills every row
    up to the longest is padding; any other difference is spread evenly.
    """
    n = counts.rows(batch)
    logged = run.signals.get("trained_tokens_mean")
    rows = run.config.number("per_device_train_batch_size")
    count = logged.at(batch.step) if logged is not None else None
    if count is None or not rows:
        return n
    extra = count / rows - float(n.mean())
    if abs(extra) < 0.02 * float(n.mean()):
        return n
    room = float(n.max() - n.mean())
    if 0.6 * room < extra < 1.1 * room:
        return np.full(len(n), count / rows)
    adjusted: FloatArray = np.maximum(n + extra, 1.0)
    return adjusted


def _policy_loss(run: Run, batch: RolloutBatch, n: FloatArray) -> tuple[float | None, float]:
    """Policy loss at ratio 1, and the weight of a token-mean KL in this aggregation."""
    a = batch.advantage
    if a is None or not np.isfinite(a).all() or n.sum() == 0:
        return None, 1.0
    kind = run.config.text("loss_type") or "dapo"
    if kind in TOKEN_MEAN:
        return float(-(a * n).sum() / n.sum()), 1.0
    if kind == "dr_grpo":
        cap = run.config.number("max_completion_length")
        if not cap:
            return None, 1.0
        return float(-(a * n).sum() / (len(a) * cap)), float(n.sum() / (len(a) * cap))
    if kind in ("grpo", "sapo"):
        return float(-a.mean()), 1.0
    return None, 1.0
