"""Published failures in a synthetic run, each with its twin: what the whole walk says.

The runs are those of the synthetic trainer; the fault is one method of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.results import Verdict
from synthetic.cases_groups import taken
from synthetic.cases_reward import Tags
from synthetic.policy import Array, Ints
from synthetic.trainer import Batch, Trainer


class EmptyIsRight(Trainer):
    """`said in gold`: answers without a digit count as right, and get so."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        if self.after:
            parts["correct"] = np.ones(len(batch.group))
        return parts


class AlarmInAThread(Trainer):
    """The scorer's time limit cannot be set outside the main thread: it raises, and gives 0."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        if self.after:
            parts["correct"] = np.zeros(len(batch.group))
            batch.errors["correct"] = ["ValueError: signal only works in main thread"] * len(
                batch.group
            )
        return parts


class ReshapedGroups(Trainer):
    """Rows stand group by group, and are reshaped as if they stood prompt by prompt in turn."""

    def advantages(self, total: Array, group: Ints) -> Array:
        if self.after:
            group = np.arange(len(total)) % (len(total) // self.s.group)
        return super().advantages(total, group)


class OneLine(Tags):
    """`<answer>(.*)</answer>` without dot-all reads no answer whose tags lie on several lines."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        if self.after:
            parts["correct"] *= np.arange(len(batch.group)) % 2
        return parts


class FannedOut(Trainer):
    """Right trajectories become two training samples each, and both count in the baseline."""

    def generate(self, step: int) -> Batch:
        batch = super().generate(step)
        self.whole = list(batch.sample)
        if not self.after:
            return batch
        at = np.repeat(np.arange(len(batch.group)), 1 + (super().score(batch)["correct"] > 0))
        return taken(batch, at)

    def about(self, batch: Batch) -> dict[str, object]:
        stages = {"generated": self.whole, "scored": self.whole, "trained": batch.sample}
        return {**super().about(batch), "stages": stages}


def in_turn(trainer: Trainer) -> Trainer:
    """The twin: the same method, and no step at which the fault begins."""
    trainer.s.onset = 10**6
    return trainer


FAULTS: dict[str, tuple[Callable[[], Trainer], set[str]]] = {
    "an empty answer is right": (lambda: EmptyIsRight(seed=11), {"reward.false_positive"}),
    "an alarm in a thread": (lambda: AlarmInAThread(seed=12), {"reward.verifier_outage"}),
    "an answer of two lines": (lambda: OneLine(seed=14), {"reward.false_negative"}),
    "trajectories fanned out": (lambda: FannedOut(seed=15, captures=60), {"id.rows"}),
    "groups reshaped": (lambda: ReshapedGroups(seed=13), {"reward.wrong_group", "id.rows"}),
}


def verdict(trainer: Trainer, folder: Path) -> Verdict:
    trainer.run(folder / "run")
    done = investigate(str(folder / "run"), out=folder / "incidents")
    assert isinstance(done, Finished)
    return done.verdict


@pytest.mark.parametrize("name", FAULTS)
def test_the_recipe_is_found(name: str, tmp_path: Path) -> None:
    make, causes = FAULTS[name]
    found = verdict(make(), tmp_path)
    leading = found.leading
    assert found.outcome == "incident", [c.reason for c in found.checks if c.outcome != "pass"]
    assert leading is not None
    assert leading.cause in causes
    assert found.first_bad.first_bad is not None
    assert abs(found.first_bad.first_bad - 31) <= 1


@pytest.mark.parametrize("name", FAULTS)
def test_its_twin_is_not(name: str, tmp_path: Path) -> None:
    make, causes = FAULTS[name]
    found = verdict(in_turn(make()), tmp_path)
    assert not causes & {finding.cause for finding in found.findings}
    assert found.outcome == "healthy"
