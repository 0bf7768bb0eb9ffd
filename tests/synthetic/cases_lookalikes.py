"""Sound runs that look like faults of which recorded runs hold the fault itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.cases_masks import CutMasked
from synthetic.policy import DIGITS, WORDS, Array, Bools, Ints
from synthetic.trainer import Batch, Microbatch, Trainer


class Convinced(Trainer):
    """The first policy answers one task of ten with its neighbour's digit, and is sure of it."""

    def __init__(self, **settings: Any) -> None:
        """See the class."""
        super().__init__(**settings)
        self.table[4, :, DIGITS[5]] += 4.0
        self.engine, self.reference = self.table.copy(), self.table.copy()


class FromPeak(Trainer):
    """The first policy says one word far too often: learning spreads it out, entropy rises."""

    def __init__(self, **settings: Any) -> None:
        """See the class."""
        super().__init__(**settings)
        self.table[:, :, WORDS[0]] += 3.0
        self.engine, self.reference = self.table.copy(), self.table.copy()

    def score(self, batch: Batch) -> dict[str, Array]:
        """Variety is asked for: no word twice."""
        parts = super().score(batch)
        rows = [ids[made].tolist() for ids, made in self._made(batch)]
        return {**parts, "format": np.array([float(len(set(r)) == len(r)) for r in rows])}


class Graded(Trainer):
    """A neighbour of the right digit has earned a third from the start."""

    def score(self, batch: Batch) -> dict[str, Array]:
        """See the class."""
        parts = super().score(batch)
        answers = [policy.said(row[made]) for row, made in self._made(batch)]
        pairs = zip(answers, batch.digit, strict=True)
        near = [a is not None and g is not None and abs(a - g) == 1 for a, g in pairs]
        return {**parts, "correct": np.where(near, 0.3, parts["correct"])}


class Bonus(Trainer):
    """A form that is rare has paid four times as much from the start."""

    def score(self, batch: Batch) -> dict[str, Array]:
        """See the class."""
        parts = super().score(batch)
        rare = [made.sum() == 2 for _, made in self._made(batch)]
        return {**parts, "format": np.where(rare, 4.0, parts["format"])}


class Undivided(Trainer):
    """Advantages without a division, as the settings say."""

    def config(self) -> dict[str, object]:
        """See the class."""
        return {**super().config(), "scale_rewards": "none"}

    def advantages(self, total: Array, group: Ints) -> Array:
        """See the class."""
        out = np.zeros(len(total))
        for g in np.unique(group):
            out[group == g] = total[group == g] - total[group == g].mean()
        return out


class LongTask(Trainer):
    """Only an answer after three words counts as right: the task itself needs length."""

    def score(self, batch: Batch) -> dict[str, Array]:
        """See the class."""
        parts = super().score(batch)
        long = [made.sum() >= 5 for _, made in self._made(batch)]
        return {**parts, "correct": parts["correct"] * np.array(long, float)}


class OtherPrompts(Trainer):
    """From the onset on prompts have more words; the task is as easy as before."""

    def draw_prompts(self) -> list[list[int]]:
        """See the class."""
        asked = super().draw_prompts()
        if not self.after:
            return asked
        return [[*self.rng.choice(WORDS, 6).tolist(), *prompt] for prompt in asked]


class CutLeftOut(CutMasked):
    """Cut rows are left out of the loss and of the statistics of their group."""

    scored = True

    def advantages(self, total: Array, group: Ints) -> Array:
        """See the class."""
        out = np.zeros(len(total))
        ended = ~self.cut
        out[ended] = super().advantages(total[ended], group[ended])
        return out

    def score(self, batch: Batch) -> dict[str, Array]:
        """See the class."""
        self.cut = np.array([reason == "length" for reason in batch.finish])
        parts = super().score(batch)
        return (
            parts if self.scored else {n: np.where(self.cut, np.nan, v) for n, v in parts.items()}
        )


class CutUnscored(CutLeftOut):
    """... and no verifier is asked about them."""

    scored = False


class RowMeans(Trainer):
    """The mean of each row, then of the rows: the advantages of whole groups sum to 0."""

    def config(self) -> dict[str, object]:
        """See the class."""
        return {**super().config(), "loss_type": "grpo"}

    def requested(self) -> dict[str, object]:
        """See the class."""
        return self.config()

    def in_loss(self, values: Array, mask: Bools) -> Array:
        """See the class."""
        size = np.maximum(mask.sum(axis=1, keepdims=True), 1)
        return np.asarray(super().in_loss(values, mask) / size)

    def loss_sum(self, values: Array, mask: Bools) -> float:
        """See the class."""
        return float(self.in_loss(values, mask).sum())

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        """See the class."""
        for one in super().microbatches(batch):
            yield replace(one, denominator=float(len(batch.group)))


class SourceUnwritten(Trainer):
    """The record does not say where tokens come from; engine log-probs do."""

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        """See the class."""
        return {"source": None}


def late_log(folder: Path) -> None:
    """The metrics of the first 14 steps were not kept."""
    file = folder / "metrics.jsonl"
    rows = [line for line in file.read_text().splitlines() if json.loads(line)["step"] > 14]
    file.write_text("\n".join(rows) + "\n")


CASES = [
    Case("l1", lambda: Convinced(prompts=10), "healthy", twin_of="data.wrong_gold"),
    Case("l2", lambda: Trainer(tools=True, cap=16), "healthy", twin_of="mask.shifted"),
    Case("l3", lambda: Trainer(rate=0.1), "healthy", twin_of="opt.step_too_large"),
    Case(
        "l4", lambda: Trainer(updates=4, steps=30, rate=0.02), "healthy", twin_of="opt.data_reuse"
    ),
    Case("l5", lambda: Trainer(beta=0.1), "healthy", twin_of="opt.kl_constraint"),
    Case("l6", FromPeak, "healthy", twin_of="opt.entropy_bonus"),
    Case(
        "l7", lambda: Trainer(rate=0.08), "healthy", twin_of="opt.reference_model", files=late_log
    ),
    Case("l8", Graded, "healthy", twin_of="reward.false_positive"),
    Case("l9", Bonus, "healthy", twin_of="reward.outlier"),
    Case("l10", Undivided, "healthy", twin_of="reward.wrong_group"),
    Case("l11", lambda: LongTask(rate=0.06), "undetermined", twin_of="reward.hack_length"),
    Case("l13", lambda: CutLeftOut(cap=5), "healthy", twin_of="reward.wrong_group"),
    Case("l14", lambda: CutUnscored(cap=6), "healthy", twin_of="reward.verifier_outage"),
    Case("l15", RowMeans, "healthy", twin_of="grad.objective"),
    Case("l16", SourceUnwritten, "healthy", twin_of="mask.eos"),
    Case("l12", OtherPrompts, "healthy", twin_of="reward.phase_change"),
]
