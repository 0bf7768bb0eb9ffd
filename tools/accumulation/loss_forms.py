"""What a loss is at ratio 1, by its type: a weighed sum of the advantages over a denominator."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import FloatArray, Run
from firstbad.tools.updates import mixes_batches

TOKEN_MEAN = ("dapo", "bnpo")
"""Losses whose value at ratio 1 is the token mean of -A.

BNPO takes the mean of each micro-batch. Which rows a micro-batch held is not written, so its loss
follows the mean over all tokens with a scatter (r 0.989 with two micro-batches), not exactly."""
SEQUENCE_SUM = ("luspo", "seq-mean-token-sum", "seq-mean-token-sum-norm")
TOKENS_COUNT = (*TOKEN_MEAN, *SEQUENCE_SUM, "dr_grpo", "token-sum")
"""Losses in which a row weighs by its number of trained tokens."""
OF_LOG_PROBS = ("cispo", "gpg", "vespo")
"""Losses -A logp: at ratio 1 their value is the token mean of that, which takes captured tokens."""
OVER_ALL_TOKENS = ("dapo", "cispo", "vespo")
"""TRL's losses that are divided by the trained tokens of the generation batch."""
KNOWN = (*TOKENS_COUNT, *OF_LOG_PROBS, "grpo", "sapo")
"""Losses whose value is recomputed here."""
BY_DEFAULT = {
    "ms-swift": None,  # resolved from other settings
    "prime-rl": None,
    "roll": None,
    "slime": "grpo",
}
"""Loss type of a framework whose settings state none; a token mean elsewhere."""


@dataclass(frozen=True)
class LossForm:
    """Loss at ratio 1 of N rows in S steps: -sum(weight) / denominator + kl x beta x mean KL."""

    weight: FloatArray
    """(N,)."""
    denominator: FloatArray
    """(S,)."""
    kl: FloatArray
    """(S,) of the logged KL, which is a token mean in TRL and aggregated as the loss in verl."""


def loss_type(run: Run) -> str:
    """The type that the settings state, else the framework's default.

    Raises:
        NoData: neither is known.
    """
    kind = run.config.text("loss_type") or BY_DEFAULT.get(run.framework, "dapo")
    if kind is None:
        raise NoData(f"the settings state no loss type, and {run.framework} has no fixed default")
    return kind


def cap_of_weight(run: Run) -> float | None:
    """The most that a CISPO loss weighs a token by; None where it is 1 and an offset, or not known.

    In TRL `epsilon_high` is the cap itself, and where it is not set it is `epsilon`, so that 0.2
    scales every token. verl, and others where it is below 1, mean an offset from 1.
    """
    low, high = run.config.number("epsilon"), run.config.number("epsilon_high")
    if run.framework in ("trl", "ms-swift"):
        return high or low
    return high if high is not None and high >= 1 else None


def loss_form(
    run: Run, rows: RowTable, n: FloatArray, log_probs: FloatArray | None = None
) -> LossForm:
    """The form of the run's loss; `n` (N,) are trained tokens, 0 in rows left out of the loss.

    `log_probs` (N,) are summed over these tokens; only losses -A logp need them.

    Sources: TRL 1.16 `_compute_loss`, verl 0.9.1 `agg_loss`. The ratio of a sequence (GSPO) is 1 as
    well, so its level makes no difference here.

    Raises:
        NoData: a type whose value at ratio 1 is not known from rollouts.
    """
    kind = loss_type(run)
    size, tokens = rows.size.astype(np.float64), _total(rows, n)
    trained, weight = n > 0, rows.advantage * n
    of_rows, per_row = _total(rows, trained.astype(np.float64)) / size, tokens / size
    if kind in TOKEN_MEAN:
        form = weight, np.maximum(tokens, 1.0), np.ones_like(size)
    elif kind == "grpo":
        form = rows.advantage * trained, size, of_rows
    elif kind == "sapo":
        # 4/t sigmoid(t (ratio - 1)) A at ratio 1 is 2A/t.
        above = run.config.number("sapo_temperature_pos") or 1.0
        below = run.config.number("sapo_temperature_neg") or 1.05
        scaled = rows.advantage * 2.0 / np.where(rows.advantage > 0, above, below)
        form = scaled * trained, size, of_rows
    elif kind == "dr_grpo":
        width = np.ones_like(size) * _width(run, kind, "max_completion_length")
        form = weight, size * width, per_row / width
    elif kind in SEQUENCE_SUM:
        width = _norm_width(run, rows, n) if kind.endswith("norm") else np.ones_like(size)
        form = weight, size * width, per_row / width
    elif kind == "token-sum":
        form = weight, np.ones_like(size), tokens
    elif kind in OF_LOG_PROBS and log_probs is not None:
        cap = cap_of_weight(run) if kind == "cispo" else None
        weight = rows.advantage * log_probs * min(1.0, cap or 1.0)
        form = weight, np.maximum(tokens, 1.0), np.ones_like(size)
    else:
        raise NoData(f"not computed for the loss type {kind}: no identity is known for it")
    weight, denominator, of_kl = form
    return LossForm(weight, denominator, np.ones_like(size) if run.framework == "verl" else of_kl)


def _total(rows: RowTable, values: FloatArray) -> FloatArray:
    """(S,) sum over the rows of each step; NaN stays NaN."""
    found = np.bincount(rows.step, weights=values, minlength=len(rows.steps))
    return found.astype(np.float64)


def policy_loss(form: LossForm, rows: RowTable) -> tuple[FloatArray, FloatArray]:
    """Advantage term at ratio 1, and the root of its rows' summed squares: (S,) each."""
    spread = np.sqrt(_total(rows, form.weight**2)) / form.denominator
    return -_total(rows, form.weight) / form.denominator, spread


def gain_loss(form: LossForm, rows: RowTable) -> FloatArray:
    """(S,) advantage term at ratio 1 of the rows whose advantage is above 0, over all tokens."""
    return -_total(rows, np.where(rows.advantage > 0, form.weight, 0.0)) / form.denominator


def left_out_by_version(run: Run) -> float | None:
    """Factor on the loss that the run's TRL version is known to leave out; None: there is none.

    Before 1.9.1 a sum over tokens was over the whole rollout batch, however many updates share it.
    Source: TRL's `_compute_loss` before and since 1.9.1.
    """
    accumulation = run.config.number("gradient_accumulation_steps")
    parts = run.config.number("steps_per_generation")
    stated = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", run.version or "")
    if run.framework != "trl" or stated is None or not accumulation or not parts:
        return None
    old = tuple(int(part or 0) for part in stated.groups()) < (1, 9, 1)
    left_out = old and accumulation != parts and loss_type(run) in OVER_ALL_TOKENS
    return accumulation / parts if left_out else None


def longest_rows(run: Run, rows: RowTable, n: FloatArray, *, logged: bool) -> FloatArray:
    """(S,) tokens of the longest row of a step: of (N,) counts, or as `logged` where it is."""
    counted = rows.highest(n)
    if not logged:
        return counted
    said = rows.logged(run.signals.get("completion_length_max"))
    return np.where(np.isfinite(said), said, counted)


def _norm_width(run: Run, rows: RowTable, n: FloatArray) -> FloatArray:
    """(S,) what verl's `seq-mean-token-sum-norm` divides by besides the rows.

    Its `loss_scale_factor`; where that is not set, the width of the padded tensor: the cap in the
    trainer of up to 0.8 and its later form (V0), the longest row in the one since 0.9 (V1).

    Raises:
        NoData: neither is set nor does the run tell which trainer it is.
    """
    ones = np.ones(len(rows.steps))
    if width := run.config.number("loss_scale_factor"):
        return ones * width
    padded_to_longest = _is_verl_v1(run)
    if padded_to_longest is None:
        raise NoData(
            "the loss type is seq-mean-token-sum-norm without a `loss_scale_factor`, and nothing "
            "tells whether verl's trainer pads to the cap (V0) or to the longest row (V1)"
        )
    if not padded_to_longest:
        return ones * _width(run, loss_type(run), "max_completion_length")
    return longest_rows(run, rows, n, logged=not mixes_batches(run))


def _is_verl_v1(run: Run) -> bool | None:
    """Whether verl's newer trainer (V1) wrote the run; None where nothing tells."""
    if run.config.flag("transfer_queue.enable") or any(
        key.startswith(("training/num_turns/", "training/off_policy/"))
        for key in (*run.signals.unknown, *(s.source_key for s in run.signals.known.values()))
    ):
        return True
    if (stated := run.config.flag("trainer.use_v1")) is not None:
        return stated
    version = re.match(r"(\d+)\.(\d+)", run.version or "")
    old = version is not None and tuple(map(int, version.groups())) < (0, 9)
    return False if run.framework == "verl" and old else None


def _width(run: Run, kind: str, setting: str) -> float:
    width = run.config.number(setting)
    if not width:
        raise NoData(f"the loss type is {kind}, and its denominator (`{setting}`) is not stated")
    return width
