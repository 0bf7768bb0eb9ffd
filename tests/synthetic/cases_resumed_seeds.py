"""A resume at which the sampler's generator begins again, and ones that look like it."""

from __future__ import annotations

from typing import Any

import numpy as np

from firstbad_recorder import Recorder
from synthetic import policy
from synthetic.cases import Case
from synthetic.cases_records import Wordy
from synthetic.trainer import Batch

PASS = 20
LONGEST = 6
"""Tokens of a prompt."""


class SeedsByStep(Wordy):
    """Every step's sampling is seeded; prompts come round, and a resume begins the second pass."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.data = np.random.default_rng(100)

    def seed(self) -> int:
        """Of the step's sampling."""
        return 500 + self.step

    def draw_prompts(self) -> list[list[int]]:
        if self.step % PASS == 1:
            self.data = np.random.default_rng(100)
        return policy.prompts(self.data, self.s.prompts)

    def generate(self, step: int) -> Batch:
        self.rng = np.random.default_rng(self.seed())
        return super().generate(step)

    def about(self, batch: Batch) -> dict[str, object]:
        return {**super().about(batch), "seeds": {"data": 100, "sampler": self.seed()}}

    def extra(self, recorder: Recorder) -> None:
        if self.step == self.s.onset:
            recorder.event("resume", self.step, "loaded the last checkpoint")


class SeedsBeginAgain(SeedsByStep):
    """From the resume on seeds count from the first step's."""

    def seed(self) -> int:
        return 500 + self.step - (self.s.onset - 1 if self.after else 0)


class NewPrompts(SeedsBeginAgain):
    """The same where prompts never come round: the seeds meet others, and nothing is repeated."""

    def draw_prompts(self) -> list[list[int]]:
        return policy.prompts(self.data, self.s.prompts)


class OnePromptStays(SeedsBeginAgain):
    """One prompt of each step is one of four in turn, the others are new: no epoch ends there."""

    def draw_prompts(self) -> list[list[int]]:
        kept = policy.prompts(np.random.default_rng(self.step % 4), 1)
        new = [p for p in policy.prompts(self.data, 60) if len(p) == LONGEST]  # seldom alike
        return [*kept, *new[: self.s.prompts - 1]]


SEEDS = "records.resume_seeds"


def slow(of: type[SeedsByStep]) -> SeedsByStep:
    """So slow a rate that the policy of the second pass is nearly that of the first."""
    return of(onset=PASS + 1, steps=2 * PASS, rate=0.001, cap=30)


CASES = [
    Case(
        "r120",
        lambda: slow(SeedsBeginAgain),
        "undetermined",
        checks={SEEDS: "inconclusive"},
        twin_of="infra.resume",  # seeds by the place in an epoch leave the same record
    ),
    Case(
        "r124",
        lambda: slow(OnePromptStays),
        "incident",
        "infra.resume",
        (PASS + 1, PASS + 1),
        {SEEDS: "fail"},
    ),
    Case("r121", lambda: slow(SeedsByStep), "healthy", None, None, {SEEDS: "pass"}, "infra.resume"),
    Case("r122", lambda: slow(NewPrompts), "healthy", None, None, {SEEDS: "pass"}, "infra.resume"),
]
