"""The policy term of each captured token at any ratio, by loss type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.accumulation.loss_forms import OF_LOG_PROBS, TOKENS_COUNT, cap_of_weight
from firstbad.tools.errors import NoData
from firstbad.tools.run import BoolArray, FloatArray, Run

BY_ROW = ("grpo", "sapo")
"""Losses that sum the mean of each row; all others sum over tokens."""
KINDS = (*TOKENS_COUNT, *OF_LOG_PROBS, *BY_ROW)
_LOG_RATIO = 20.0
"""VESPO's clamp of a log-ratio, of a token and of a sequence."""


@dataclass(frozen=True)
class TokenLoss:
    """The loss type with the settings that its terms take."""

    kind: str
    low: float
    """Half-width of the clip below 1 ..."""
    high: float
    """... and above."""
    cap: float | None
    """CISPO: the most that a token weighs; None: the clip range bounds it."""
    bound: float
    """On the unclipped ratio (TRL's `delta`); inf where there is none."""
    by_sequence: bool
    """The ratio is that of the sequence: exp of the mean log-ratio over its tokens."""
    shape: dict[str, float]
    """Temperatures of SAPO, exponents of VESPO."""
    corrects_kl: bool = False
    """The KL term is multiplied with the ratio (TRL's `use_bias_correction_kl`)."""

    @classmethod
    def of(cls, run: Run) -> TokenLoss:
        """As the settings state it.

        Raises:
            NoData: loss type or clip range are not stated, or the type is not known.
        """
        config = run.config
        kind, low = config.text("loss_type"), config.number("epsilon")
        if kind is None or low is None:
            raise NoData("loss type and clip range are not both stated")
        if kind not in KINDS:
            raise NoData(f"not computed for the loss type {kind}")
        usual = {
            "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05, "vespo_k_pos": 2.0,
            "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0,
        }  # fmt: skip
        return cls(
            kind,
            low,
            config.number("epsilon_high") or low,
            cap_of_weight(run),
            config.number("delta") or np.inf,
            config.text("importance_sampling_level") == "sequence",
            {name: config.number(name) or value for name, value in usual.items()},
            config.flag("use_bias_correction_kl") is True,
        )

    def terms(
        self, new: FloatArray, old: FloatArray, advantage: FloatArray, mask: BoolArray
    ) -> tuple[FloatArray, FloatArray]:
        """Policy term of each token, and the same without its clip or cap; all arrays (R, T).

        Sources: TRL 1.16 `_compute_loss`, verl 0.9.1 `core_algos`.
        """
        away = np.where(mask, new - old, 0.0)
        if self.by_sequence:
            size = np.maximum(mask.sum(axis=1, keepdims=True), 1)
            away = np.broadcast_to(away.sum(axis=1, keepdims=True) / size, new.shape)
        ratio = np.exp(away)
        if self.kind == "gpg":
            plain = -advantage * new
            return plain, plain
        if self.kind == "cispo":
            low, high = (0.0, self.cap) if self.cap else (1 - self.low, 1 + self.high)
            return -np.clip(ratio, low, high) * advantage * new, -ratio * advantage * new
        if self.kind == "vespo":
            term = -self._sequence_weight(new - old, advantage, mask) * advantage * new
            return term, term
        if self.kind == "sapo":
            warm = self._by_sign("sapo_temperature", advantage > 0)
            term = -4.0 / warm / (1.0 + np.exp(-warm * (ratio - 1.0))) * advantage
            return term, term
        clipped = -np.clip(ratio, 1 - self.low, 1 + self.high) * advantage
        plain = -np.minimum(ratio, self.bound) * advantage
        return np.maximum(plain, clipped), plain

    def _sequence_weight(
        self, away: FloatArray, advantage: FloatArray, mask: BoolArray
    ) -> FloatArray:
        """w^k exp(l (1 - w)) of the sequence's ratio w, with k and l by the sign of A: VESPO."""
        bounded = np.where(mask, np.clip(away, -_LOG_RATIO, _LOG_RATIO), 0.0)
        log_w = np.clip(bounded.sum(axis=1, keepdims=True), np.log(1e-8), _LOG_RATIO)
        k, rate = (self._by_sign(f"vespo_{n}", advantage >= 0) for n in ("k", "lambda"))
        return np.asarray(np.exp(k * log_w + rate * (1.0 - np.exp(log_w))))

    def _by_sign(self, name: str, above: BoolArray) -> FloatArray:
        return np.where(above, self.shape[f"{name}_pos"], self.shape[f"{name}_neg"])

    def sum_of_rows(self, values: FloatArray, mask: BoolArray) -> FloatArray:
        """(R,) what each row adds to the loss before its denominator."""
        size = np.maximum(mask.sum(axis=1), 1) if self.kind in BY_ROW else np.ones(len(mask))
        return np.asarray(np.where(mask, values, 0.0).sum(axis=1) / size)
