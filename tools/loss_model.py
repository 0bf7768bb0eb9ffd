"""The loss as its parts: advantage term, KL term, declared entropy term, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.estimators import kl_in_reward
from firstbad.tools.ratios import MicrobatchRows
from firstbad.tools.rewards import used_advantage
from firstbad.tools.run import BoolArray, FloatArray, RolloutBatch, Run
from firstbad.tools.stats import pearson
from firstbad.tools.token_counts import TokenCounts

TOKEN_MEAN = {"dapo", "bnpo"}
"""Losses whose value at ratio 1 is the token mean of -A (CISPO's is that of -A logp).

BNPO takes the mean of each micro-batch. Which rows a micro-batch held is not written, so its loss
follows the mean over all tokens with a scatter (r 0.989 with two micro-batches), not exactly."""


@dataclass(frozen=True)
class LossTerms:
    """The parts over N steps, each (N,)."""

    steps: FloatArray
    logged: FloatArray
    policy: FloatArray
    kl: FloatArray
    """beta x logged KL, zeros where there is none."""
    entropy: FloatArray | None
    whole: bool = True
    """`logged` is the whole loss; False: its policy term, without KL and entropy."""

    def cut(self, part: slice) -> LossTerms:
        """A part of the steps."""
        entropy = None if self.entropy is None else self.entropy[part]
        return replace(
            self,
            steps=self.steps[part],
            logged=self.logged[part],
            policy=self.policy[part],
            kl=self.kl[part],
            entropy=entropy,
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
    whole, term, kl, entropy = (
        run.signals.get(n) for n in ("loss", "policy_loss", "kl_ref", "entropy")
    )
    loss = whole or term
    if loss is None:
        raise NoData("no logged loss")
    if not run.config.of_trainer:
        raise NoData("no trainer config: loss type and KL weight are not known")
    every = run.config.number("logging_steps")
    if every is not None and every > 1:
        raise NoData(f"the loss is averaged over {every:g} steps (`logging_steps`)")
    used = ((b, used_advantage(run, b)) for b in run.rollouts.batches())
    batches = [b if a is b.advantage else replace(b, advantage=a) for b, a in used if a is not None]
    if not batches:
        raise NoData("no rollouts with advantages, nor settings that define them")
    if rows_complete(run) is False:
        raise NoData("the rollouts hold only part of the rows of a step, the loss is over all")
    if run.config.text("loss_type") is None and "normalize_advantages" in run.config.values:
        raise NoData("the loss of TRL's RLOO trainer is not among those recomputed here")
    if run.config.number("updates_per_batch") not in (None, 1.0):
        raise NoData("each logged step holds several updates, so ratios are not 1")
    beta = 0.0 if whole is None or kl_in_reward(run) else _kl_weight(run)
    counts = TokenCounts(run, batches)
    trained = TrainedTokens(run, batches, counts)
    rows = []
    for batch in batches:
        logged = loss.at(batch.step)
        k = kl.at(batch.step) if kl is not None else 0.0
        h = entropy.at(batch.step) if entropy is not None else None
        policy, scale = _policy_loss(run, batch, trained.rows(batch))
        if logged is None or policy is None or k is None:
            continue
        if h is not None and whole is not None:
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
            None if whole is None or np.isnan(table[:, 4]).any() else table[:, 4],
            whole is not None,
        ),
        counts,
    )


def _kl_weight(run: Run) -> float:
    """Weight of KL in the loss; 0 where it is not stated and no KL is logged.

    Raises:
        NoData: KL is logged, and no file states its weight.
    """
    beta = run.config.number("beta")
    if beta is None and run.signals.get("kl_ref") is not None:
        raise NoData("KL is logged, and its weight in the loss (`beta`) is not stated")
    return beta or 0.0


class TrainedTokens:
    """Trained tokens per row: completion tokens, corrected by the logged trained count.

    Where more or fewer tokens are trained than the completions have, that is a fault of the masks;
    the denominator of the loss counts what was trained all the same. A surplus that follows the
    longest row of the step is padding; any other difference is spread by the prompt, or evenly.
    """

    def __init__(self, run: Run, batches: list[RolloutBatch], counts: TokenCounts) -> None:
        """Decide once, over all steps, what the difference is."""
        self._counts = counts
        masked = run.config.flag("mask_truncated_completions") is True
        self._cut = run.signals.get("truncation_rate") if masked else None
        self._extra: dict[int, float] = {}
        logged = run.signals.get("trained_tokens_mean")
        room = []
        configured = MicrobatchRows(run)
        for batch in batches if logged is not None else ():
            count = logged.at(batch.step) if logged is not None else None
            rows = configured.at(batch.step)
            n = counts.rows(batch)
            if count is not None and rows:
                n = n * self._trained(batch, n)
                self._extra[batch.step] = count / rows - float(n.mean())
                room.append(float(n.max() - n.mean()))
        extra = np.array(list(self._extra.values()))
        off = np.abs(extra) > 0.3  # of a token a row: rounding stays below
        r = pearson(np.array(room)[off], extra[off]) if off.sum() >= 5 else None
        self._padding = r is not None and r > 0.6 and bool(np.median(extra[off]) > 0)

    def _trained(self, batch: RolloutBatch, n: FloatArray) -> BoolArray:
        """(R,) rows in the loss: where cut ones are masked, as many of the longest are not."""
        share = self._cut.at(batch.step) if self._cut is not None else None
        kept = np.ones(len(n), bool)
        cut = round((share or 0.0) * len(n))
        kept[np.argsort(n, kind="stable")[len(n) - cut :]] = False
        return kept

    def rows(self, batch: RolloutBatch) -> FloatArray:
        """(R,) trained tokens of each row, at least 1; 0 where truncated rows are masked."""
        n = self._counts.rows(batch)
        n = n * self._trained(batch, n)
        extra = self._extra.get(batch.step, 0.0)
        if abs(extra) <= 0.3:
            return n
        if self._padding:
            return np.full(len(n), float(n.mean()) + extra)
        prompt = np.array([len(text.split()) for text in batch.prompts], np.float64)
        more = prompt - float(prompt.mean()) if extra >= float(prompt.mean()) else 0.0
        adjusted: FloatArray = np.maximum(n + extra + more, 1.0)
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
    if kind == "grpo":
        return float(-a.mean()), 1.0
    return None, 1.0
