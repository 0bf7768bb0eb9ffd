"""Logged figures that are not what their names say, and loggers that only write otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from synthetic.cases import Case
from synthetic.trainer import Trainer

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


MEANS = "records.logged_means"
CASES = [
    Case("r100", WindowedTooHigh, "incident", "metric.misleading", (1, 5), {MEANS: "fail"}),
    Case("r101", Windowed, "healthy", checks={MEANS: "pass"}, twin_of="metric.misleading"),
    Case("r102", LastOfWindow, "healthy", checks={MEANS: "pass"}, twin_of="metric.misleading"),
]
