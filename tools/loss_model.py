"""The loss as its parts: advantage term, KL term, declared entropy term, step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.estimators import kl_in_reward
from firstbad.tools.ratios import MicrobatchRows
from firstbad.tools.rewards import used_advantage
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, Run
from firstbad.tools.stats import pearson
from firstbad.tools.token_counts import TokenCounts
from firstbad.tools.updates import mixes_batches

TOKEN_MEAN = {"dapo", "bnpo"}
"""Losses whose value at ratio 1 is the token mean of -A (CISPO's is that of -A logp).

BNPO takes the mean of each micro-batch. Which rows a micro-batch held is not written, so its loss
follows the mean over all tokens with a scatter (r 0.989 with two micro-batches), not exactly."""


TOKENS_APART = 0.3
"""Tokens a row by which two counts differ in more than rounding."""


@dataclass(frozen=True)
class LossTerms:
    """The parts over N steps, each (N,)."""

    steps: FloatArray
    logged: FloatArray
    policy: FloatArray
    kl: FloatArray
    """beta x logged KL, zeros where there is none."""
    entropy: FloatArray | None
    spread: FloatArray
    """Root of the summed squares of all rows' advantage terms: how far the loss would move if rows
    were drawn anew."""
    padded: FloatArray
    """Advantage and KL term over rows times the longest row: padding counted as tokens."""
    whole: bool = True
    """`logged` is the whole loss; False: its policy term, without KL and entropy."""

    def cut(self, part: slice | BoolArray) -> LossTerms:
        """A part of the steps."""
        entropy = None if self.entropy is None else self.entropy[part]
        return replace(
            self,
            steps=self.steps[part],
            logged=self.logged[part],
            policy=self.policy[part],
            kl=self.kl[part],
            entropy=entropy,
            spread=self.spread[part],
            padded=self.padded[part],
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
    if mixes_batches(run):
        every = run.config.number("logging_steps")
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
    parts = run.config.number("steps_per_generation") or 0.0
    if parts > (run.config.number("gradient_accumulation_steps") or parts):
        raise NoData("each update trains part of a rollout batch (`steps_per_generation`)")
    beta = 0.0 if whole is None or kl_in_reward(run) else _kl_weight(run)
    counts = TokenCounts(run, batches)
    rows = RowTable.of(run, batches)
    trained = trained_tokens(run, rows, counts)
    policy, spread, scale = _policy_loss(run, rows, trained)
    logged = rows.logged(loss)
    k = np.zeros(len(rows.steps)) if kl is None else rows.logged(kl)
    h = rows.logged(entropy)
    if whole is not None:  # a declared bonus
        logged += (run.config.number("entropy_coef") or 0.0) * np.where(np.isnan(h), 0.0, h)
    padded = _over_padding(run, rows, trained, beta * k)
    columns = np.column_stack([rows.steps, logged, policy, beta * k * scale, h, spread, padded])
    table = columns[np.isfinite(columns[:, 1:4]).all(axis=1) & ~_miscounted(run, rows, counts)]
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
            table[:, 5],
            table[:, 6],
            whole is not None,
        ),
        counts,
    )


def _miscounted(run: Run, rows: RowTable, counts: TokenCounts) -> BoolArray:
    """(S,) steps with cut rows whose token counts do not give the logged mean length.

    Where generation runs on behind the answer, the text does not tell which rows were cut.
    """
    cut = np.nan_to_num(rows.logged(run.signals.get("truncation_rate"))) > 0
    apart = rows.mean(rows.values(counts.rows)) - rows.logged(
        run.signals.get("completion_length_mean")
    )
    found: BoolArray = cut & (np.abs(apart) > TOKENS_APART)
    return found


def _kl_weight(run: Run) -> float:
    """Weight of KL in the loss; 0 where it is not stated and no KL is logged.

    Raises:
        NoData: KL is logged, and no file states its weight.
    """
    beta = run.config.number("beta")
    if beta is None and run.signals.get("kl_ref") is not None:
        raise NoData("KL is logged, and its weight in the loss (`beta`) is not stated")
    return beta or 0.0


def trained_tokens(run: Run, rows: RowTable, counts: TokenCounts) -> FloatArray:
    """(N,) trained tokens per row: completion tokens, corrected by the logged trained count.

    At least 1; 0 where truncated rows are masked.

    Where more or fewer tokens are trained than the completions have, that is a fault of the masks;
    the denominator of the loss counts what was trained all the same. A surplus that follows the
    longest row of the step is padding; any other difference is spread by the prompt, or evenly.
    """
    n = rows.values(counts.rows)
    if run.config.flag("mask_truncated_completions") is True:
        n = np.where(rows.values(counts.cut), 0.0, n)
    mean = rows.mean(n)
    count = rows.logged(run.signals.get("trained_tokens_mean"))
    extra = count / MicrobatchRows(run).of_steps(rows) - mean
    off = np.abs(extra) > TOKENS_APART
    if not off.any():
        return n
    room = rows.highest(n) - mean
    r = pearson(room[off], extra[off]) if off.sum() >= 5 else None
    surplus = extra[rows.step]
    if r is not None and r > 0.6 and np.median(extra[off]) > 0:
        adjusted = mean[rows.step] + surplus
    else:
        prompt = rows.prompt_words
        usual = rows.mean(prompt)[rows.step]
        more = np.where(surplus >= usual, prompt - usual, 0.0)
        adjusted = np.maximum(n + surplus + more, 1.0)
    return np.where(off[rows.step], adjusted, n)


def _policy_loss(
    run: Run, rows: RowTable, n: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Policy loss at ratio 1, its spread over rows, and the weight of a token-mean KL: (S,) each.

    NaN where the loss type is not known.
    """
    steps = len(rows.steps)

    def total(values: FloatArray) -> FloatArray:
        found = np.bincount(rows.step, weights=values, minlength=steps)
        return found.astype(np.float64)  # NaN stays NaN

    kind = run.config.text("loss_type") or "dapo"
    cap = run.config.number("max_completion_length")
    tokens, size = total(n), rows.size.astype(np.float64)
    weight, denominator, of_kl = rows.advantage * n, tokens, np.ones_like(tokens)
    if kind == "dr_grpo" and cap:
        denominator, of_kl = size * cap, tokens / (size * cap)
    elif kind == "grpo":
        weight, denominator = rows.advantage, size
    elif kind not in TOKEN_MEAN:
        weight = np.full(len(n), np.nan)
    return -total(weight) / denominator, np.sqrt(total(weight**2)) / denominator, of_kl


def _over_padding(run: Run, rows: RowTable, n: FloatArray, kl: FloatArray) -> FloatArray:
    """(S,) loss at ratio 1 summed over tokens, over rows times the longest row of the step.

    `kl` (S,) is the weighed mean per token.
    """
    longest = rows.logged(run.signals.get("completion_length_max"))
    places = rows.size * np.where(np.isfinite(longest), longest, rows.highest(n))
    tokens = np.bincount(rows.step, weights=n, minlength=len(rows.steps))
    weighed = np.bincount(rows.step, weights=rows.advantage * n, minlength=len(rows.steps))
    found: FloatArray = (kl * tokens - weighed) / np.maximum(places, 1.0)
    return found
