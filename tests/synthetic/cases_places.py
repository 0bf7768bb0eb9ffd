"""Completions that lose their place between generation and scoring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from synthetic.cases import Case
from synthetic.cases_accumulation import Faulty
from synthetic.policy import Ints, Rows
from synthetic.trainer import Batch, Trainer


class InOrderOfFinish(Faulty):
    """The later half of a batch is handed over as it was finished, not as it was asked for."""

    share = 1 / 2

    def places(self, n: int) -> Ints:
        """(R,) the completion that lands beside each prompt."""
        late = np.arange(n - int(n * self.share), n)
        found = np.arange(n)
        found[late] = self.rng.permutation(late)
        return found

    def generate(self, step: int) -> Batch:
        batch = super().generate(step)
        if not self.after:
            return batch
        width = int(batch.rows.made.argmax(axis=1).min())
        at = self.places(len(batch.group))
        ids, source = batch.rows.ids.copy(), batch.rows.source.copy()
        ids[:, width:], source[:, width:] = ids[at, width:], source[at, width:]
        logp = batch.engine_logp.copy()
        logp[:, width:] = logp[at, width:]
        attention = np.asarray(source > 0).astype(np.int64)
        rows = Rows(ids, attention, np.maximum(attention.cumsum(axis=1) - 1, 0), source)
        return replace(batch, rows=rows, engine_logp=logp, finish=[batch.finish[i] for i in at])


class AllShuffled(InOrderOfFinish):
    """All of them."""

    share = 1.0


class WithinPrompts(InOrderOfFinish):
    """Samples of one prompt change places, which changes nothing."""

    def places(self, n: int) -> Ints:
        """(R,) the completion that lands beside each prompt."""
        group = self.s.group
        return np.concatenate([g + self.rng.permutation(group) for g in range(0, n, group)])


OWN = "records.own_prompts"

CASES = [
    Case("r60", lambda: InOrderOfFinish(rate=0.1), "incident", "id.rows", (31, 33), {OWN: "fail"}),
    Case("r61", lambda: AllShuffled(rate=0.1), "incident", "id.rows", (31, 33), {OWN: "fail"}),
    Case("r62", WithinPrompts, "healthy", checks={OWN: "pass"}, twin_of="id.rows"),
    Case("r63", lambda: Trainer(rate=0.003), "healthy", checks={OWN: "pass"}, twin_of="id.rows"),
]
