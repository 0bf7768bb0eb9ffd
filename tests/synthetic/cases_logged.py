"""Logged figures that are not what their names say, and loggers that only write otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array, picked
from synthetic.trainer import Batch, Trainer

EVERY = 5


class Windowed(Trainer):
    """A row is written every few steps, with the means of the steps since the last one."""

    times = 1.0
    """What reward figures are multiplied with."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.since: list[dict[str, float]] = []

    def config(self) -> dict[str, object]:
        return {**super().config(), "logging_steps": EVERY}

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        self.since.append(super().scalars(row))
        if self.step % EVERY:
            return {}
        means = {name: float(np.mean([r[name] for r in self.since])) for name in row}
        self.since.clear()
        return {**means, "reward_mean": means["reward_mean"] * self.times}


class WindowedTooHigh(Windowed):
    """The total is logged too high."""

    times = 1.3


class LastOfWindow(Windowed):
    """A row is written every few steps, with the figures of that step alone."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {} if self.step % EVERY else row


class Kept(Trainer):
    """Keeps the batch and the weights before its update, for figures of its own."""

    def prepared(self, batch: Batch) -> Batch:
        self.batch, self.before = super().prepared(batch), self.table
        return self.batch

    def by_row(self, values: Array) -> float:
        """Mean over sequences of their means over tokens; (R, L)."""
        made = self.batch.rows.made
        return float((np.where(made, values, 0.0).sum(axis=1) / made.sum(axis=1)).mean())

    def log_probs(self) -> Array:
        """(R, L, V)."""
        return self.forward(self.before, self.batch.rows, which="new")


class EntropyTwice(Trainer):
    """Entropy is logged twice as high as it is."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "entropy": 2 * row["entropy"]}


class EntropyBySequence(Kept):
    """Entropy is logged as the mean over sequences, and lengths differ."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        log_probs = self.log_probs()
        return {**row, "entropy": self.by_row(-(np.exp(log_probs) * log_probs).sum(axis=-1))}


class KlTwice(Trainer):
    """KL is logged twice as high as it is, from the onset on."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "kl_ref": (2 if self.after else 1) * row["kl_ref"]}


class KlOfFirstOrder(Kept):
    """KL is logged as the mean log-ratio, which no other figure here is."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        batch = self.batch
        new = picked(self.log_probs(), batch.rows.ids)
        return {**row, "kl_ref": float((new - batch.ref)[batch.rows.made].mean())}


class PartTimesWeight(Trainer):
    """A part is logged times its weight, which is 0.2."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "reward_part/format": 0.2 * row["reward_part/format"]}


class PartInPercent(Trainer):
    """A part is logged in percent."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "reward_part/correct": 100 * row["reward_part/correct"]}


class TotalAfterKl(Trainer):
    """The total is logged with the KL term of the reward in it, which rows do not hold."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "reward_mean": row["reward_mean"] - 0.5 * row["kl_ref"] - 0.05}


class EntropyInBits(Trainer):
    """Entropy is logged in bits."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "entropy": row["entropy"] / np.log(2)}


def one_step_late(folder: Path) -> None:
    """Metrics are numbered after the step, rollouts and tokens before it."""
    file = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({**row, "step": row["step"] + 1}) + "\n" for row in rows]
    file.write_text("".join(lines), encoding="utf-8")


class CutsAdded(Trainer):
    """More answers are logged as cut, and as longer, than were."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {
            **row,
            "truncation_rate": min(1.0, row["truncation_rate"] + 0.5),
            "completion_length_mean": row["completion_length_mean"] * 1.5,
        }


MEANS, FIGURES = "records.logged_means", "records.logged_figures"
MISLEADING = "metric.misleading"
CASES = [
    Case("r100", WindowedTooHigh, "incident", MISLEADING, (1, 5), {MEANS: "fail"}),
    *(
        Case(name, make, "healthy", checks={MEANS: "pass"}, twin_of=MISLEADING)
        for name, make in (
            ("r133", PartTimesWeight),
            ("r134", PartInPercent),
            ("r135", TotalAfterKl),
        )
    ),
    Case("r101", Windowed, "healthy", checks={MEANS: "pass"}, twin_of=MISLEADING),
    Case("r102", LastOfWindow, "healthy", checks={MEANS: "pass"}, twin_of=MISLEADING),
    Case(
        "r103",
        EntropyTwice,
        "incident",
        MISLEADING,
        (1, 1),
        {FIGURES: "fail"},
        complaint="the entropy looks odd",
    ),
    # What nobody complained about, and what changes nothing, is a note.
    Case("r104", EntropyTwice, "healthy", checks={FIGURES: "pass"}, twin_of=MISLEADING),
    Case(
        "r105",
        EntropyBySequence,
        "healthy",
        checks={FIGURES: "pass"},
        twin_of=MISLEADING,
        complaint="the entropy looks odd",
    ),
    Case(
        "r106",
        KlTwice,
        "incident",
        MISLEADING,
        (31, 36),
        {FIGURES: "fail"},
        complaint="KL looks odd",
    ),
    Case(
        "r107",
        KlOfFirstOrder,
        "healthy",
        checks={FIGURES: "pass"},
        twin_of=MISLEADING,
        complaint="KL looks odd",
    ),
    Case(
        "r136",
        Trainer,
        "healthy",  # labels are one step late: losses are recomputed from the rows they belong to
        checks={FIGURES: "pass"},
        twin_of=MISLEADING,
        files=one_step_late,
        complaint="KL explodes",
    ),
    Case(
        "r137",
        EntropyInBits,
        "healthy",
        checks={FIGURES: "pass"},
        twin_of=MISLEADING,
        complaint="the entropy is too high",
    ),
    Case(
        "r108",
        CutsAdded,
        "incident",
        MISLEADING,
        (1, 1),
        {FIGURES: "fail"},
        complaint="too many answers are truncated",
    ),
]
