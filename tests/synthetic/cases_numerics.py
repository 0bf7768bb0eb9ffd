"""Values that are not finite, or too coarse, and sound runs that look alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import Array, Bools, Rows
from synthetic.trainer import Batch, Trainer

PLACES = (
    "logits", "log_softmax", "logp", "log_ratio", "exp", "objective", "kl", "loss", "grad",
)  # fmt: skip


class Trailed(Trainer):
    """Writes its trail over all tokens, masked ones apart, and skips steps that are not finite."""

    dtypes: Mapping[str, str] = {}
    """Dtypes that are not float32, by place."""

    def numerics(self, batch: Batch, found: Mapping[str, Any]) -> dict[str, object]:
        """See the class."""
        trail = []
        there = batch.rows.source > 0
        for place in PLACES:
            values = np.asarray(found["everywhere"][place])
            of_tokens = values.shape[:2] == there.shape
            bad = ~np.isfinite(values)
            if of_tokens:
                bad = bad & np.expand_dims(there, tuple(range(2, values.ndim)))
            outside = np.zeros_like(bad)
            if of_tokens:
                outside = bad & ~np.expand_dims(batch.loss_mask, tuple(range(2, values.ndim)))
            finite = np.isfinite(values)
            trail.append({
                "name": place, "place": place, "dtype": self.dtypes.get(place, "float32"),
                "n": values.size, "n_nonfinite": int(bad.sum()),
                "n_nonfinite_masked": int(outside.sum()),
                "largest": float(np.abs(values[finite]).max(initial=0.0)),
            })  # fmt: skip
        return {
            "trail": trail,
            "norms": found["norms"],
            "parameters": found["parameters"],
            "clamps": self.clamps(batch, found),
        }

    def clamps(self, batch: Batch, found: Mapping[str, Any]) -> list[dict[str, object]]:
        """Limits and their hits."""
        return []

    def update(self, grad: Array) -> Array:
        """See the class."""
        return super().update(grad) if np.isfinite(grad).all() else np.zeros_like(grad)

    def train(self, *args: Any, **settings: Any) -> None:
        """The arithmetic is meant to overflow in some cases."""
        with np.errstate(all="ignore"):
            super().train(*args, **settings)


class FarBehindMask(Trailed):
    """From the onset on, old log-probs of tool tokens are a fill of -140; the mask selects."""

    fill = -140.0

    def prepared(self, batch: Batch) -> Batch:
        """See the class."""
        batch = super().prepared(batch)
        if self.after:
            batch.old[batch.rows.source == 4] = self.fill
        return batch

    def ratio(self, new: Array, old: Array) -> Array:
        """In float32."""
        return np.exp((new - old).astype(np.float32)).astype(np.float64)


class OverflowBehindMask(FarBehindMask):
    """The same, and the mask is multiplied."""

    def loss_sum(self, values: Array, mask: Bools) -> float:
        """See the class."""
        return float((values * mask).sum())

    def in_loss(self, values: Array, mask: Bools) -> Array:
        """See the class."""
        return values * mask


class OverflowFiltered(OverflowBehindMask):
    """... and the logger writes the last finite figure in the place of others."""

    last: Mapping[str, float] = {}

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        """See the class."""
        self.last = {k: v if np.isfinite(v) else self.last.get(k, 0.0) for k, v in row.items()}
        return dict(self.last)


class LoggedBadly(Trailed):
    """From the onset on the logger writes NaN for the loss; nothing that is computed is."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        """See the class."""
        return {**row, "loss": float("nan")} if self.after else row


class MissingBehindMask(OverflowBehindMask):
    """Old log-probs of tool tokens are NaN, and the mask is multiplied."""

    fill = float("nan")


class MissingSelected(FarBehindMask):
    """Old log-probs of tool tokens are NaN, and the mask selects."""

    fill = float("nan")


class ClampAfterExp(OverflowBehindMask):
    """The ratio is clamped, not the log-ratio: forward it is finite, backward it is not."""

    def ratio(self, new: Array, old: Array) -> Array:
        """See the class."""
        return np.minimum(super().ratio(new, old), 10.0)

    def ratio_slope(self, ratio: Array, log_ratio: Array) -> Array:
        """Derivative of the clamp times that of exp, as a framework multiplies them."""
        far = np.exp(log_ratio.astype(np.float32)).astype(np.float64)
        return far * (far < 10.0)


class HalfLogits(Trailed):
    """Logits are computed in units of 1/16384 in float16, which ends at 65504."""

    unit = 16384.0

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        """See the class."""
        values = policy.logits(table, rows) / self.s.temperature
        with np.errstate(all="ignore"):
            values = np.maximum(values * self.unit, -65504.0).astype(np.float16).astype(np.float64)
            values /= self.unit
            if which == "new":
                self.new_logits = values
            return policy.log_softmax(values)

    def numerics(self, batch: Batch, found: Mapping[str, Any]) -> dict[str, object]:
        """The logits are those that were computed."""
        everywhere = {**found["everywhere"], "logits": self.new_logits}
        return super().numerics(batch, {**found, "everywhere": everywhere})


class Excluded(Trailed):
    """Logits of tokens that are never sampled are set to -Inf, by design."""

    def numerics(self, batch: Batch, found: Mapping[str, Any]) -> dict[str, object]:
        """See the class."""
        logits = np.array(found["everywhere"]["logits"])
        logits[..., list(policy.NEVER)] = -np.inf
        everywhere = {**found["everywhere"], "logits": logits}
        return super().numerics(batch, {**found, "everywhere": everywhere})


def bfloat16(values: Array) -> Array:
    """Rounded to 8 bits."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


class CoarseLogp(Trailed):
    """Log-softmax in bfloat16."""

    dtypes = dict.fromkeys(PLACES[1:5], "bfloat16")

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        """Differences of numbers that lie near 1, each rounded."""
        values = policy.logits(table, rows) / self.s.temperature
        away = values - values.max(axis=-1, keepdims=True)
        total = bfloat16(np.log(bfloat16(np.exp(away).sum(axis=-1, keepdims=True))))
        return bfloat16(bfloat16(away) - total)


class CoarseRatios(CoarseLogp):
    """The same without a trail, in which several updates are made on each batch."""

    def numerics(self, batch: Batch, found: Mapping[str, Any]) -> dict[str, object]:
        """Nothing is recorded of it."""
        return {}


class HalfLogp(CoarseRatios):
    """Log-softmax in float16."""

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        """See the class."""
        values = (policy.logits(table, rows) / self.s.temperature).astype(np.float16)
        away = values - values.max(axis=-1, keepdims=True)
        total = np.exp(away).sum(axis=-1, keepdims=True, dtype=np.float16)
        return np.asarray(away - np.log(total), np.float64)


class CoarseLogits(Trailed):
    """Only the logits are in bfloat16."""

    dtypes = {"logits": "bfloat16"}


class AddedEps(Trainer):
    """Log-probs are the logarithm of the probability and 1e-3."""

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        """See the class."""
        return np.log(np.exp(super().forward(table, rows, which=which)) + 1e-3)


class CoarseEngine(Trainer):
    """The engine computes in bfloat16: the rarer a token, the more it differs."""

    def engine_arithmetic(self, values: Array) -> Array:
        """See the class."""
        return bfloat16(values)


class TightClamp(Trailed):
    """A clamp of the log-ratio for numerics, at 0.03."""

    bound = 0.03

    def ratio(self, new: Array, old: Array) -> Array:
        """See the class."""
        return np.exp(np.clip(new - old, -self.bound, self.bound))

    def ratio_slope(self, ratio: Array, log_ratio: Array) -> Array:
        """0 where the clamp holds."""
        return ratio * (np.abs(log_ratio) < self.bound)

    def clamps(self, batch: Batch, found: Mapping[str, Any]) -> list[dict[str, object]]:
        """The clamp, and the clip, with their hits."""
        away = found["everywhere"]["log_ratio"][batch.loss_mask]
        out = np.abs(np.exp(away) - 1) > self.s.clip
        limits = (
            ("fuse", "log_ratio", self.bound, np.abs(away) >= self.bound),
            ("clip", "objective", self.s.clip, out),
            ("cap", "importance_weight", self.s.clip, out),
        )
        return [
            {"name": name, "place": place, "low": -limit, "high": limit, "n": away.size,
             "n_hit": int(hits.sum())}
            for name, place, limit, hits in limits
        ]  # fmt: skip


class Fuse(TightClamp):
    """A fuse at 20, and a clip and a cap that hit."""

    bound = 20.0


class Absorbed(Trailed):
    """Weights are kept in bfloat16, and updates are small."""

    master: str | None = "bfloat16"

    def __init__(self, **settings: Any) -> None:
        """See the class."""
        super().__init__(**settings)
        self.table = bfloat16(self.table)
        self.reference = self.table.copy()
        self.copy = self.table.copy()

    def stored(self, table: Array) -> Array:
        """See the class."""
        return bfloat16(table)

    def numerics(self, batch: Batch, found: Mapping[str, Any]) -> dict[str, object]:
        """See the class."""
        own = [{**p, "dtype": "bfloat16", "master_dtype": self.master} for p in found["parameters"]]
        return super().numerics(batch, {**found, "parameters": own})


class WithMaster(Absorbed):
    """... with a copy in 32 bits, in which they add up."""

    master = "float32"

    def stored(self, table: Array) -> Array:
        """`table` is the stored one after the update."""
        self.copy += table - self.table
        return bfloat16(self.copy)


TOOLS: dict[str, Any] = {"cap": 16, "tools": True}

CASES = [
    Case("n1", lambda: OverflowBehindMask(**TOOLS), "incident", "num.exp_overflow", (31, 33)),
    Case("n2", lambda: FarBehindMask(**TOOLS), "healthy", twin_of="num.exp_overflow"),
    Case("n3", lambda: MissingBehindMask(**TOOLS), "incident", "num.inf_sentinel", (31, 33)),
    Case("n4", lambda: MissingSelected(**TOOLS), "healthy", twin_of="num.inf_sentinel"),
    Case("n5", HalfLogits, "incident", "num.overflow_activations"),
    Case("n6", Excluded, "healthy", twin_of="num.overflow_activations"),
    Case("n7", CoarseLogp, "incident", "num.low_precision_logprob", (1, 1)),
    Case("n8", CoarseLogits, "healthy", twin_of="num.low_precision_logprob"),
    Case("n20", lambda: CoarseRatios(updates=3, rate=0.01), "incident",
         "num.low_precision_logprob", (1, 2)),
    Case("n21", lambda: HalfLogp(updates=3, rate=0.01), "incident",
         "num.low_precision_logprob", (1, 2)),
    Case("n22", lambda: Trainer(updates=3, steps=40, rate=0.02), "healthy",
         twin_of="num.low_precision_logprob"),
    Case("n9", lambda: AddedEps(prompts=12), "incident", "num.log_softmax_eps", (1, 1)),
    Case("n10", lambda: CoarseEngine(prompts=12), "healthy", twin_of="num.log_softmax_eps"),
    Case("n11", lambda: TightClamp(updates=3, steps=40, rate=0.03), "incident",
         "num.clamp_in_objective"),
    Case("n12", lambda: Fuse(updates=3, steps=40, rate=0.03, clip=0.04), "healthy",
         twin_of="num.clamp_in_objective"),
    Case("n13", lambda: Absorbed(rate=2e-4), "incident", "num.update_absorbed", (1, 2)),
    Case("n14", lambda: WithMaster(rate=0.004), "healthy", twin_of="num.update_absorbed"),
    Case("n15", lambda: ClampAfterExp(**TOOLS), "incident", "num.exp_overflow", (31, 33)),
    Case("n18", LoggedBadly, "incident", "metric.misleading", (31, 31), twin_of="num.exp_overflow"),
    Case("n16", lambda: OverflowFiltered(**TOOLS), "incident", "num.exp_overflow", (31, 33)),
]  # fmt: skip
