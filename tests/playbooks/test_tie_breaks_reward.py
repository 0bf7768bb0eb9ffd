"""Two causes with one look, of scoring, data and optimizer: which of them leads.

Each row is a run of the synthetic trainer in which both could be meant, and the tie-break of the
list of causes says which one is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.results import Verdict
from synthetic.cases_groups import AsFinished
from synthetic.cases_left_out import WrongRows
from synthetic.cases_lookalikes import OtherPrompts
from synthetic.cases_optimizer import BothLost, OptimizerLost, ScheduleLost
from synthetic.cases_records import DataReplayed, RateDropped, Stalled
from synthetic.cases_reward import FailedCalls, QuickCalls, RetriedCalls, SlowCalls
from synthetic.policy import DIGITS, Array
from synthetic.trainer import Batch, Trainer

SLOW = "the run became slow at around step 31"


class OtherUnit(Trainer):
    """From the onset on a part pays three times as much for the same."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        return {**parts, "format": parts["format"] * (3.0 if self.after else 1.0)}


class OtherData(OtherPrompts, OtherUnit):
    """Both at one step: another data set, whose rewards have another range."""


class TimedOut(FailedCalls, SlowCalls):
    """Calls take long, and those that take too long are scored as 0."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = FailedCalls.score(self, batch)
        batch.latency = {"correct": np.full(len(batch.group), 0.1 if self.after else 0.002)}
        self.seconds = float(batch.latency["correct"].sum())
        return parts


class SlowRetries(RetriedCalls, SlowCalls):
    """Calls fail and are tried again until they succeed, which takes long; scores are right."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = RetriedCalls.score(self, batch)
        batch.latency = {"correct": np.full(len(batch.group), 0.1 if self.after else 0.002)}
        self.seconds = float(batch.latency["correct"].sum())
        return parts


class ForgotTask(Trainer):
    """From the onset on no answer is right, and the verifier says so: the part turns constant."""

    def stored(self, table: Array) -> Array:
        if self.step >= self.s.onset:
            table[:, :, list(DIGITS)] = -12.0
        return table


class StuckVerifier(Trainer):
    """From the onset on every row gets 0, right answers among them."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        return {**parts, "correct": parts["correct"] * (not self.after)}


Row = tuple[Callable[[], Trainer], str, str | None, set[str]]
ROWS: dict[str, Row] = {
    "a part's unit, with the same data": (
        lambda: OtherUnit(seed=31), "", "reward.scale", {"reward.phase_change"},
    ),
    "a part's unit, with other data": (
        lambda: OtherData(seed=31), "", "reward.phase_change", {"reward.scale"},
    ),
    "calls that time out and are scored": (
        lambda: TimedOut(seed=32), SLOW, "reward.verifier_outage", set(),
    ),
    "calls that are tried again": (
        lambda: SlowRetries(seed=32), SLOW, "reward.service_slow", {"reward.verifier_outage"},
    ),
    "calls that take long": (
        lambda: SlowCalls(seed=32), SLOW, "reward.service_slow",
        {"reward.verifier_outage", "infra.rollout_stall"},
    ),
    "no new rollouts": (
        lambda: Stalled(seed=32), SLOW, "infra.rollout_stall",
        {"reward.verifier_outage", "reward.service_slow"},
    ),
    "steps that take long, and nothing else": (
        lambda: QuickCalls(seed=32), SLOW, None,
        {"reward.verifier_outage", "reward.service_slow", "infra.rollout_stall"},
    ),
    "a part that turns constant under a verifier": (
        lambda: StuckVerifier(seed=33), "", "reward.verifier_outage", {"reward.false_negative"},
    ),
    "rows in another order": (
        lambda: AsFinished(seed=34), "", "id.rows", set(),
    ),
    "statistics of another set": (
        lambda: WrongRows(seed=34, cap=5), "", "reward.wrong_group", {"id.rows"},
    ),
    "a resume without optimizer": (
        lambda: OptimizerLost(seed=35), "", "opt.state_mismatch", {"opt.lr_jump", "infra.resume"},
    ),
    "a resume without optimizer and schedule": (
        lambda: BothLost(seed=35), "", "opt.state_mismatch", {"infra.resume"},
    ),
    "a resume without schedule": (
        lambda: ScheduleLost(seed=35), "", "opt.lr_jump", {"opt.state_mismatch", "infra.resume"},
    ),
    "a resume at the first sample": (
        lambda: DataReplayed(onset=21), "", "infra.resume", {"opt.state_mismatch", "opt.lr_jump"},
    ),
    "a learning rate that never arrived": (
        lambda: RateDropped(seed=36), "", "opt.lr_jump", {"cfg.resolved", "opt.step_too_large"},
    ),
}  # fmt: skip


def verdict(trainer: Trainer, complaint: str, folder: Path) -> Verdict:
    trainer.run(folder / "run")
    done = investigate(str(folder / "run"), complaint, out=folder / "incidents")
    assert isinstance(done, Finished)
    return done.verdict


@pytest.mark.parametrize("name", ROWS)
def test_the_tie_is_broken(name: str, tmp_path: Path) -> None:
    make, complaint, cause, others = ROWS[name]
    found = verdict(make(), complaint, tmp_path)
    leading = None if found.leading is None else found.leading.cause
    open_ = [f"{c.layer}.{c.check}: {c.outcome}" for c in found.checks if c.outcome != "pass"]
    assert leading == cause, open_
    assert not others & {finding.cause for finding in found.findings}


def test_a_part_that_turns_constant_because_nothing_is_right_is_no_outage(tmp_path: Path) -> None:
    """Independent judging agrees: errors and re-judging would have to mark an outage."""
    found = verdict(ForgotTask(seed=33), "", tmp_path)
    assert "reward.verifier_outage" not in {finding.cause for finding in found.findings}
    assert found.outcome != "healthy"
