"""The effective sample size of the weights that correct for the sampler, logged by the trainer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array
from synthetic.trainer import Batch, Trainer


class Weighed(Trainer):
    """Logs 1/E[(w/E w)^2] of token weights w, new over engine probability, cut at 2."""

    def token_terms(self, batch: Batch, new: Array) -> tuple[Array, Array, Array, Array, Array]:
        made = batch.rows.made
        weight = np.minimum(np.exp(new - batch.engine_logp)[made], 2.0)
        self.ess = float(weight.mean() ** 2 / (weight**2).mean())
        return super().token_terms(batch, new)

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        row = {k: v for k, v in row.items() if k not in ("logprob_diff_mean", "kl_ref")}
        return {**row, "ess_ratio": self.ess}


class Frozen(Weighed):
    """The engine keeps the weights of the onset; no engine log-prob, version or ledger is kept."""

    def sync(self) -> dict[str, object]:
        return {} if self.after else super().sync()

    def generate(self, step: int) -> Batch:
        self.engine_version = self.version
        return super().generate(step)

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        return dict.fromkeys(("logp_engine", "entropy", "varentropy", "logp_ref"))


class Noisy(Weighed):
    """Look-alike: an engine in half precision, whose weights spread from the start."""

    def engine_arithmetic(self, values: Array) -> Array:
        return values + 0.03 * np.random.default_rng(self.step).normal(size=values.shape)


def _no_ledger(folder: Path) -> None:
    (folder / "syncs.jsonl").unlink()


CASES = [
    Case("y73", lambda: Frozen(rate=0.08), "undetermined", first_bad=(38, 44), files=_no_ledger),
    Case("y74", Noisy, "healthy"),
]
