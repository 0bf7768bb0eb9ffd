"""Steps that break behind exp: in the objective, the loss, the gradient or the update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from firstbad_recorder import Recorder
from synthetic.cases import Case
from synthetic.cases_numerics import TOOLS, Trailed
from synthetic.policy import Array, Bools, Ints
from synthetic.trainer import Batch, Microbatch


class Whole(Trailed):
    """The trail goes on to the optimizer state and the weights."""

    def numerics(self, batch: Batch, found: Mapping[str, Any]) -> dict[str, object]:
        """See the class."""
        out = super().numerics(batch, found)
        ends = {"optimizer": np.stack(self.moments), "parameter": self.table}
        further = [
            {"name": place, "place": place, "dtype": "float32", "n": values.size,
             "n_nonfinite": int((~np.isfinite(values)).sum()), "n_nonfinite_masked": 0,
             "largest": float(np.abs(values[np.isfinite(values)]).max(initial=0.0))}
            for place, values in ends.items()
        ]  # fmt: skip
        return {**out, "trail": [*out["trail"], *further]}  # type: ignore[misc]


class OwnCount(Trailed):
    """Each micro-batch is one prompt, divided by its own tokens; alike answers are left out."""

    least = 0.0

    def config(self) -> dict[str, object]:
        """The loss is defined so."""
        return {**super().config(), "loss_type": "bnpo"}

    def loss_mask(self, batch: Batch) -> Bools:
        """From the onset on, groups without contrast bring no token."""
        mask = super().loss_mask(batch).copy()
        if self.after:
            mask[batch.advantage == 0] = False
        return mask

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        """See the class."""
        for one in super().microbatches(batch):
            own = max(float(batch.loss_mask[one.rows].sum()), self.least)
            # A numpy number: its division by 0 gives NaN, as in a tensor library.
            yield replace(one, denominator=np.float64(own), scale=1 / self.s.accumulation)


class AtLeastOne(OwnCount):
    """... divided by at least 1."""

    least = 1.0


class NoEps(Trailed):
    """From the onset on, groups are divided by their bare standard deviation."""

    def advantages(self, total: Array, group: Ints) -> Array:
        """0 over 0 in a group of equal scores."""
        if not self.after:
            return super().advantages(total, group)
        out = np.zeros(len(total))
        for g in np.unique(group):
            own = total[group == g]
            with np.errstate(invalid="ignore"):
                out[group == g] = (own - own.mean()) / own.std(ddof=1)
        return out


class ScoreOfNothing(Trailed):
    """From the onset on, one score in a hundred is NaN, and counts."""

    def score(self, batch: Batch) -> dict[str, Array]:
        """See the class."""
        parts = super().score(batch)
        if self.after:
            parts["format"][self.rng.random(len(batch.group)) < 0.01] = np.nan
        return parts

    def total(self, parts: Mapping[str, Array]) -> Array:
        """Nothing is made finite."""
        values = list(parts.values())
        return np.asarray(self.s.weights[0] * values[0] + self.s.weights[1] * values[1])


class WeightOfTurn(Trailed):
    """From the onset on, tokens weigh 1 over a flag, 0 at tool tokens; the mask selects."""

    def token_terms(self, batch: Batch, new: Array) -> tuple[Array, Array, Array, Array, Array]:
        """See the class."""
        ratio, objective, kl, value, along = super().token_terms(batch, new)
        if self.after:
            weight = 1 / (batch.rows.source != 4)
            objective, value, along = objective * weight, value * weight, along * weight
        return ratio, objective, kl, value, along


class WeightMultiplied(WeightOfTurn):
    """... and the mask is multiplied."""

    def loss_sum(self, values: Array, mask: Bools) -> float:
        """See the class."""
        return float((values * mask).sum())

    def in_loss(self, values: Array, mask: Bools) -> Array:
        """See the class."""
        return values * mask


class ProductOverflows(WeightMultiplied):
    """From the onset on, old log-probs of tool tokens are 88.3 below: float32 holds their ratio."""

    def prepared(self, batch: Batch) -> Batch:
        """See the class."""
        batch = super().prepared(batch)
        if self.after:
            batch.old[batch.rows.source == 4] -= 88.3
        return batch

    def token_terms(self, batch: Batch, new: Array) -> tuple[Array, Array, Array, Array, Array]:
        """In float32."""
        single = [v.astype(np.float32) for v in Trailed.token_terms(self, batch, new)]
        ratio, objective, kl, value, along = (v.astype(np.float64) for v in single)
        return ratio, objective, kl, value, along


class EntropyTerm(Trailed):
    """From the onset on, the loss has a further term that is not in the trail: p log p at p = 0."""

    def backward(self, *args: Any, **named: Any) -> Any:
        """See the class."""
        grad, loss, ledger = super().backward(*args, **named)
        if self.after:
            p = np.zeros(2)
            loss += float((p * np.log(p)).sum())
            grad = grad + p.sum() * np.log(p[0])
        return grad, loss, ledger


class HalfSum(Trailed):
    """The loss is summed in float16; from the onset on, advantages are a lot larger."""

    dtypes: Mapping[str, str] = {"loss": "float16"}

    def advantages(self, total: Array, group: Ints) -> Array:
        """... and are not divided by their spread."""
        mean = np.array([total[group == g].mean() for g in group])
        return np.asarray(total - mean) * (1e5 if self.after else 1.0)

    def config(self) -> dict[str, object]:
        """See the class."""
        return {**super().config(), "scale_rewards": "none"}

    def loss_sum(self, values: Array, mask: Bools) -> float:
        """See the class."""
        kept = np.where(mask, values, 0.0).astype(np.float16)
        return float(kept.sum(dtype=np.float16))


class RootOfKl(Trailed):
    """From the onset on, the root of KL is added, whose slope is not finite where KL is 0."""

    def token_terms(self, batch: Batch, new: Array) -> tuple[Array, Array, Array, Array, Array]:
        """The policy against itself has a KL of 0."""
        ratio, objective, kl, value, along = super().token_terms(batch, new)
        if self.after:
            away = batch.old - new
            own = np.exp(away) - away - 1
            value = value + 0.01 * np.sqrt(own)
            along = along + 0.01 * (1 - np.exp(away)) / (2 * np.sqrt(own))
        return ratio, objective, kl, value, along


class StateSpoiled(Whole):
    """From one step on, a block of the second moments is not finite."""

    resumes = False

    def update(self, grad: Array) -> Array:
        """See the class."""
        if self.step == self.s.onset:
            self.moments[1][3] = np.nan
        return super().update(grad)

    def extra(self, recorder: Recorder) -> None:
        """Where the run was resumed."""
        if self.resumes and self.step == self.s.onset - 1:
            recorder.event("resume", self.s.onset, "resumed from a checkpoint")


class StateSpoiledAtResume(StateSpoiled):
    """... at which the run was resumed."""

    resumes = True


class RateOfNothing(Whole):
    """From the onset on, the schedule divides 0 by 0."""

    def rate(self) -> float:
        """See the class."""
        return float("nan") if self.after else super().rate()


class Diverges(Whole):
    """From the onset on, the update of a block is a quotient of zeros."""

    def update(self, grad: Array) -> Array:
        """See the class."""
        change = super().update(grad)
        if self.after:
            change[3] = np.zeros_like(change[3]) / 0.0
        return change


SHORT: dict[str, Any] = {"steps": 31}
"""The step that breaks is the last: weights that are not finite sample nothing."""

CASES = [
    Case("n70", lambda: OwnCount(accumulation=6), "incident", "grad.denominator"),
    Case("n71", lambda: AtLeastOne(accumulation=6), "healthy", twin_of="grad.denominator"),
    Case("n72", NoEps, "incident", "reward.near_zero_sigma"),
    Case("n84", ScoreOfNothing, "incident", "reward.outlier"),
    Case("n73", lambda: WeightMultiplied(**TOOLS), "incident", "num.inf_sentinel", (31, 31)),
    Case("n74", lambda: WeightOfTurn(**TOOLS), "healthy", twin_of="num.inf_sentinel"),
    Case("n75", lambda: ProductOverflows(**TOOLS), "incident", "num.exp_overflow", (31, 31)),
    Case("n76", EntropyTerm, "incident", "other.unlisted", (31, 31), twin_of="num.exp_overflow"),
    Case("n77", HalfSum, "incident", "num.low_precision_logprob", (31, 31)),
    Case("n78", RootOfKl, "incident", "other.unlisted", (31, 31), twin_of="num.exp_overflow"),
    Case("n79", lambda: StateSpoiled(**SHORT), "incident", "other.unlisted", (31, 31),
         twin_of="opt.state_mismatch"),
    Case("n80", lambda: StateSpoiledAtResume(**SHORT), "incident", "opt.state_mismatch", (31, 31)),
    Case("n81", lambda: RateOfNothing(**SHORT), "incident", "opt.lr_jump", (31, 31)),
    Case("n82", lambda: Diverges(**SHORT), "incident", "other.unlisted", (31, 31),
         twin_of="opt.lr_jump"),
    Case("n83", Whole, "healthy", twin_of="opt.state_mismatch"),
]  # fmt: skip
