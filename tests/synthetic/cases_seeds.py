"""Seeds that are recorded with the rollouts, in rows whose order in the group tells nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from synthetic.cases import Case
from synthetic.cases_records import SharedNoise, Wordy
from synthetic.policy import Array, Rows
from synthetic.trainer import Batch, Trainer


class Seeded(Wordy):
    """Two ranks generate half a group each. Rows are gathered as they end, in any order."""

    ranks_seeds = (100, 200)

    def generate(self, step: int) -> Batch:
        batch = super().generate(step)
        n, half = len(batch.group), self.s.group // 2
        order = np.random.default_rng(step).permutation(n)
        order = order[np.argsort(batch.group[order], kind="stable")]
        place = order % self.s.group
        self.rank = place // half
        self.seeds = [
            self.ranks_seeds[r] * 10_000 + step * 10 + int(p)
            for r, p in zip(self.rank, place % half, strict=True)
        ]
        rows = batch.rows
        return replace(
            batch,
            rows=Rows(
                rows.ids[order], rows.attention[order], rows.position[order], rows.source[order]
            ),
            engine_logp=batch.engine_logp[order],
            digit=[batch.digit[i] for i in order],
            sample=[batch.sample[i] for i in order],
            finish=[batch.finish[i] for i in order],
            version=batch.version[order],
        )

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row, rank, seed in zip(rows, self.rank, self.seeds, strict=True):
            row |= {"rank": int(rank), "seed": seed}
        return rows


class Mirrored:
    """A generator whose noise is drawn as usual, or the same for both halves of a group."""

    def __init__(self, trainer: Trainer, rng: np.random.Generator) -> None:
        """`trainer` says whether the onset has come."""
        self._trainer, self._rng = trainer, rng
        self._shared = SharedNoise(rng, trainer.s.group, trainer.s.group // 2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)

    def gumbel(self, *, size: tuple[int, ...]) -> Array:
        source: Any = self._shared if self._trainer.after else self._rng
        return np.asarray(source.gumbel(size=size))


class RanksAlike(Seeded):
    """From the onset on a restarted launcher gives both ranks the first one's seed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        rng: Any = Mirrored(self, self.rng)
        self.rng = rng

    def generate(self, step: int) -> Batch:
        self.ranks_seeds = (100, 100) if self.after else (100, 200)
        return super().generate(step)


class OneStream(Seeded):
    """Look-alike: the engine writes its own seed on every row, and draws them one after another."""

    def generate(self, step: int) -> Batch:
        batch = super().generate(step)
        self.seeds = [7 + int(rank) for rank in self.rank]
        return batch


CASES = [
    Case(
        "r90",
        RanksAlike,
        "incident",
        "data.sampling",
        (31, 31),
        checks={"records.completion_draw": "fail"},
    ),
    Case(
        "r91",
        lambda: OneStream(cap=30),
        "healthy",
        checks={"records.completion_draw": "pass"},
        twin_of="data.sampling",
    ),
]
