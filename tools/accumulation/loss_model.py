"""The loss as its parts: advantage term, KL term, declared entropy term, step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from firstbad.tools.accumulation.loss_forms import (
    OF_LOG_PROBS,
    gain_loss,
    longest_rows,
    loss_form,
    loss_type,
    policy_loss,
)
from firstbad.tools.accumulation.trained_log_probs import trained_log_probs
from firstbad.tools.completeness import rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.loss_units import SCHEDULED, Units
from firstbad.tools.probability.ratios import MicrobatchRows
from firstbad.tools.records.logged_figures import PER_SEQUENCE, WEIGHED, reading_that_fits
from firstbad.tools.records.step_labels import on_rollout_labels
from firstbad.tools.reward.estimators import kl_in_reward
from firstbad.tools.rewards import used_advantage
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, Run, Signal
from firstbad.tools.stats import pearson
from firstbad.tools.token_counts import TokenCounts
from firstbad.tools.updates import updates_per_batch

TOKENS_APART = 0.3
"""Tokens a row by which two counts differ in more than rounding."""


@dataclass(frozen=True)
class LossTerms:
    """The parts over N units, each (N,): a unit is one step, or a mean over several."""

    steps: FloatArray
    """Last logged step of each unit."""
    opened: FloatArray
    """Last step before each unit."""
    logged: FloatArray
    policy: FloatArray
    gains: FloatArray
    """Of `policy`: what rows with an advantage above 0 bring to it."""
    kl: FloatArray
    """beta x logged KL per token, zeros where there is none. Where captures show that the logged
    figure is a sum over each sequence, or has its weight already, that is taken out."""
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
            opened=self.opened[part],
            logged=self.logged[part],
            policy=self.policy[part],
            gains=self.gains[part],
            kl=self.kl[part],
            entropy=entropy,
            spread=self.spread[part],
            padded=self.padded[part],
        )

    @property
    def predicted(self) -> FloatArray:
        """Recomputed loss."""
        return self.policy + self.kl

    @property
    def wide(self) -> bool:
        """Whether a unit is a mean over several steps, so that what it shows began inside it."""
        return bool((self.steps - self.opened > 1).any())

    def good_before(self, i: int) -> int:
        """Last step that is surely right where unit `i`, from 1, is the first that looks wrong.

        A mean over several steps may look right although its last step is wrong.
        """
        return int(self.opened[i - 1] if self.wide else self.steps[i - 1])


def collect_terms(run: Run, *, fewest: int) -> tuple[LossTerms, TokenCounts]:
    """Recompute the parts of the loss, unit by unit, on the first pass over fresh rollouts.

    Where the log labels its rows one step off against the rollouts, and its loss fits them so,
    steps are those of the rollouts.

    Raises:
        NoData: no loss, no advantages, a loss type without an identity, or fewer than `fewest`
            units of logged rows and rollouts (see `Units`) with both.
    """
    moved = on_rollout_labels(run)
    if moved is run:
        return _collect(run, fewest)
    as_labelled, as_rolled = _collect(run, fewest), _collect(moved, fewest)
    fits = [pearson(t.predicted, t.logged) or 0.0 for t, _ in (as_labelled, as_rolled)]
    # Rewards alone may be a step off, as where they are logged ahead of the update.
    return as_rolled if fits[1] > fits[0] else as_labelled


def _collect(run: Run, fewest: int) -> tuple[LossTerms, TokenCounts]:
    whole, term = (run.signals.get(n) for n in ("loss", "policy_loss"))
    loss = whole or term
    if loss is None:
        raise NoData("no logged loss")
    if not run.config.of_trainer:
        raise NoData("no trainer config: loss type and KL weight are not known")
    _refuse_by_settings(run)
    used = ((b, used_advantage(run, b)) for b in run.rollouts.batches())
    batches = [b if a is b.advantage else replace(b, advantage=a) for b, a in used if a is not None]
    if not batches:
        raise NoData("no rollouts with advantages, nor settings that define them")
    if rows_complete(run) is False:
        raise NoData("the rollouts hold only part of the rows of a step, the loss is over all")
    beta = 0.0 if whole is None or kl_in_reward(run) else _kl_weight(run)
    summed = None
    if (kind := loss_type(run)) in OF_LOG_PROBS:
        captured = trained_log_probs(run, batches)
        batches = [b for b in batches if b.step in captured]
        if len(batches) < fewest:
            raise NoData(
                f"not computed for the loss type {kind}: it takes the log-prob of every token, "
                f"which captures of {len(batches)} whole steps hold; at least {fewest} are needed"
            )
        summed, trained = (np.concatenate([captured[b.step][i] for b in batches]) for i in range(2))
    rows = RowTable.of(run, batches)
    units = Units(run, rows.steps, loss.steps)
    if len(units) < fewest:
        raise NoData(_too_few(run, len(units), fewest))
    counts = TokenCounts(run, rows)
    if summed is None:
        trained = trained_tokens(run, rows, counts, units)
    form = loss_form(run, rows, trained, summed)
    policy, spread = policy_loss(form, rows)
    weights = units.logged(_engine_weight(run))  # of what an engine sampled, not scored by it
    weights = np.where(np.isfinite(weights), weights, 1.0)
    logged, h = units.logged(loss), units.logged(run.signals.get("entropy"))
    k = units.logged(run.signals.get("kl_ref"))
    k = np.zeros(len(units)) if run.signals.get("kl_ref") is None else k
    reading = reading_that_fits(run, "kl_ref") if beta else None
    if reading is not None and PER_SEQUENCE in reading:
        k = k / np.maximum(units.mean(rows.mean(trained)), 1.0)
    if reading is not None and WEIGHED in reading:
        k = k / beta
    if whole is not None:  # a declared bonus
        logged += (run.config.number("entropy_coef") or 0.0) * np.where(np.isnan(h), 0.0, h)
    weighed = rows.advantage * trained if summed is None else form.weight
    padded = _over_padding(run, rows, trained, weighed, units.of_batches(beta * k), units)
    columns = np.column_stack(
        [
            units.steps,
            units.opened,
            logged,
            units.mean(policy) * weights,
            beta * k * units.mean(form.kl),
            h,
            units.root(spread) * weights,
            units.mean(padded),
            units.mean(gain_loss(form, rows)) * weights,
        ]
    )
    table = columns[
        np.isfinite(columns[:, 2:5]).all(axis=1) & ~_miscounted(run, rows, counts, units)
    ]
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
            table[:, 8],
            table[:, 4],
            None if whole is None or np.isnan(table[:, 5]).any() else table[:, 5],
            table[:, 6],
            table[:, 7],
            whole is not None,
        ),
        counts,
    )


def _refuse_by_settings(run: Run) -> None:
    """Raises NoData where settings make the loss another one than its type says."""
    config = run.config
    if config.text("loss_type") is None and "normalize_advantages" in config.values:
        raise NoData("the loss of TRL's RLOO trainer is not among those recomputed here")
    loss_type(run)
    if config.number("updates_per_batch") not in (None, 1.0):
        raise NoData("each logged step holds several updates, so ratios are not 1")
    accumulation = config.number("gradient_accumulation_steps")
    parts = config.number("steps_per_generation") or accumulation
    if run.framework not in SCHEDULED and parts and parts > (accumulation or parts):
        raise NoData("each update trains part of a rollout batch (`steps_per_generation`)")
    if config.flag("use_adaptive_entropy"):
        raise NoData("the weight of the entropy bonus changes by itself (`use_adaptive_entropy`)")
    if (config.number("top_entropy_quantile") or 1.0) < 1.0:
        raise NoData("the loss is over the tokens of highest entropy (`top_entropy_quantile`)")


def _too_few(run: Run, n: int, fewest: int) -> str:
    every = run.config.number("logging_steps") or 1
    if every > 1:
        return (
            f"the loss is averaged over {every:g} steps (`logging_steps`), and {n} times the "
            f"rollouts of all of them are there; at least {fewest} are needed"
        )
    updates = updates_per_batch(run)
    if updates is not None and updates < 1:
        return (
            "each update trains several rollout batches (`steps_per_generation` below "
            "`gradient_accumulation_steps`), of which the last one alone is written"
        )
    return (
        f"{n} steps with both a logged loss and the advantages of its rollouts; "
        f"at least {fewest} are needed"
    )


def _engine_weight(run: Run) -> Signal | None:
    """Mean importance weight of engine-sampled tokens, where it multiplies the policy term."""
    corrected = run.config.flag("vllm_importance_sampling_correction") is not False
    return run.signals.get("is_ratio_mean") if run.config.flag("use_vllm") and corrected else None


def _miscounted(run: Run, rows: RowTable, counts: TokenCounts, units: Units) -> BoolArray:
    """(U,) units with cut rows whose token counts do not give the logged mean length.

    Where generation runs on behind the answer, the text does not tell which rows were cut.
    """
    cut = np.nan_to_num(units.logged(run.signals.get("truncation_rate"))) > 0
    mean = units.mean(rows.mean(counts.rows))
    apart = mean - units.logged(run.signals.get("completion_length_mean"))
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


def trained_tokens(run: Run, rows: RowTable, counts: TokenCounts, units: Units) -> FloatArray:
    """(N,) trained tokens per row: completion tokens, corrected by the logged trained count.

    At least 1; 0 where truncated rows are masked.

    Where more or fewer tokens are trained than the completions have, that is a fault of the masks;
    the denominator of the loss counts what was trained all the same. A surplus that follows the
    longest row of the step is padding; any other difference is spread by the prompt, or evenly.
    """
    n = np.where(np.isnan(rows.n_sampled), counts.rows, rows.n_sampled)
    if run.config.flag("mask_truncated_completions") is True:
        n = np.where(counts.cut, 0.0, n)
    mean = rows.mean(n)
    count = units.logged(run.signals.get("trained_tokens_mean"))
    per_row = count / units.mean(MicrobatchRows(run).of_steps(rows))
    extra = units.of_batches(per_row - units.mean(mean))
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


def _over_padding(
    run: Run, rows: RowTable, n: FloatArray, weighed: FloatArray, kl: FloatArray, units: Units
) -> FloatArray:
    """(S,) loss at ratio 1 summed over tokens, over rows times the longest row of the step.

    `weighed` (N,) is the negative of each row's sum, `kl` (S,) the weighed mean per token.
    """
    longest = longest_rows(run, rows, n, logged=units.plain)
    tokens = np.bincount(rows.step, weights=n, minlength=len(rows.steps))
    total = np.bincount(rows.step, weights=weighed, minlength=len(rows.steps))
    found: FloatArray = (kl * tokens - total) / np.maximum(rows.size * longest, 1.0)
    return found
