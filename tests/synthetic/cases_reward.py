"""Synthetic runs with faults of the reward, and their look-alikes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import Array, Bools, Ints
from synthetic.trainer import Batch, Trainer


class FailedCalls(Trainer):
    """The verifier fails on a third of the rows, and the wrapper returns 0."""

    retried = False

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        n = len(batch.group)
        failed = (self.rng.random(n) < 0.33) & self.after
        batch.errors = {
            "correct": ["ValueError: signal only works in main thread" if f else None
                        for f in failed.tolist()]
        }  # fmt: skip
        if not self.retried:
            parts["correct"] = np.where(failed, 0.0, parts["correct"])
        return parts


class RetriedCalls(FailedCalls):
    """The same calls fail, and are tried again."""

    retried = True


class NeutralScore(Trainer):
    """The verifier times out on a third of the rows, which get a neutral 0.5."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        if self.after:
            failed = self.rng.random(len(batch.group)) < 0.35
            parts["correct"] = np.where(failed, 0.5, parts["correct"])
        return parts


class Tags(Trainer):
    """Completions in tags, over several lines in half of the rows; one pattern reads them."""

    dot_all = True

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        several = np.arange(len(batch.group)) % 2 == 0
        ended = np.array([reason == "stop" for reason in batch.finish])
        parts["format"] = (ended & (self.dot_all | ~several)).astype(float)
        return parts

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for i, row in enumerate(rows):
            words = str(row["completion"]).split()
            gap = "\n" if i % 2 == 0 else " "
            if batch.finish[i] == "stop":
                row["completion"] = (
                    f"<think>{gap}{' '.join(words[:-1])}{gap}</think>{gap}"
                    f"<answer>{''.join(words[-1:])}</answer>"
                )
        return rows


class BrokenTags(Tags):
    """The dot of the pattern stops at line breaks."""

    dot_all = False


class LeaveOneOut(Trainer):
    """Advantages over mean and spread of the others, in float32, by sums."""

    pay = 0.95

    def config(self) -> dict[str, object]:
        return {k: v for k, v in super().config().items() if k != "scale_rewards"} | {
            "advantage_estimator": "rloo"
        }

    def requested(self) -> dict[str, object]:
        return self.config()

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        return {**parts, "correct": self.pay * parts["correct"]}

    def total(self, parts: Mapping[str, Array]) -> Array:
        return np.asarray(parts["correct"])

    def advantages(self, total: Array, group: Ints) -> Array:
        out = np.zeros(len(total))
        for g in np.unique(group):
            own = np.flatnonzero(group == g)
            for i in own:
                others = total[own[own != i]].astype(np.float32)
                n = np.float32(len(others))
                mean = others.sum(dtype=np.float32) / n
                square = (others * others).sum(dtype=np.float32) / n
                spread = np.sqrt(np.maximum((square - mean * mean) * n / (n - 1), 0))
                away = np.float32(total[i]) - mean
                out[i] = away / (spread + np.float32(1e-6)) if spread > 0 else away
        return out


class HalfPay(LeaveOneOut):
    """Rewards that are exact in binary leave no residue."""

    pay = 0.5


class GrowingUnit(Trainer):
    """The format part grows by 6 % a step."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        return {**parts, "format": parts["format"] * 1.06 ** max(0, self.step - self.s.onset + 1)}


class OtherWeight(Trainer):
    """The format part weighs 1.2 instead of 0.2, whatever the settings say."""

    def total(self, parts: Mapping[str, Array]) -> Array:
        return super().total(parts) + np.asarray(self.after * 1.0 * parts["format"])


class Turned(Trainer):
    """From the onset on the format part takes away what it paid."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        return {**parts, "format": parts["format"] * (-1.0 if self.after else 1.0)}


class Ladder(Trainer):
    """A part pays for words in steps of a fixed size, and the policy climbs them."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        lengths = batch.rows.made.sum(axis=1)
        return {**parts, "format": np.minimum(lengths, 6) / 2.0}


def says(batch: Batch, digit: int) -> Array:
    """(R,) 1 where an answer ends with a digit."""
    ends = [policy.said(r[m]) for r, m in zip(batch.rows.ids, batch.rows.made, strict=True)]
    return np.array([end == digit for end in ends], float)


class LearnedScore(Trainer):
    """A learned score is the reward: it likes right answers, and one digit even more."""

    liking = 1.6

    def score(self, batch: Batch) -> dict[str, Array]:
        right = super().score(batch)["correct"]
        noise = 0.02 * self.rng.normal(size=len(right))
        return {"reward_model": right + self.liking * says(batch, 9) + noise}

    def total(self, parts: Mapping[str, Array]) -> Array:
        return np.asarray(parts["reward_model"])


class FairScore(LearnedScore):
    """The same, without the liking."""

    liking = 0.0


class PaidWord(Trainer):
    """A part that is meant for form pays for one digit, more than right answers are paid."""

    pay = 1.6

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        return {**parts, "style": self.pay / self.s.weights[1] * says(batch, 9)} | {
            "format": 0.0 * parts["format"]
        }

    def total(self, parts: Mapping[str, Array]) -> Array:
        return np.asarray(parts["correct"] + self.s.weights[1] * parts["style"])


class LittlePay(PaidWord):
    """The same part pays too little to be preferred."""

    pay = 0.1


class LongerAnswers(Trainer):
    """The policy stops later and later, until answers run into the cap; cut ones get 0."""

    conflated = True

    def stored(self, table: Array) -> Array:
        table[:, :, policy.STOP] -= 0.09 * (self.step > 15)
        return table

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        ended = np.array([reason == "stop" for reason in batch.finish])
        if self.conflated:
            parts["correct"] *= ended
        return parts


class PartialText(LongerAnswers):
    """Cut answers are scored on what they say."""

    conflated = False


class MaskedCuts(LongerAnswers):
    """Cut answers are left out of the loss, and their 0 counts in the group all the same."""

    def config(self) -> dict[str, object]:
        return {**super().config(), "mask_truncated_completions": True}

    def requested(self) -> dict[str, object]:
        return self.config()

    def loss_mask(self, batch: Batch) -> Bools:
        ended = np.array([reason == "stop" for reason in batch.finish])
        return np.asarray(super().loss_mask(batch) & ended[:, None])


class OpensTests(Trainer):
    """A part of the completions reads the tests, and the check then takes any answer."""

    paid = True

    def generate(self, step: int) -> Batch:
        batch = super().generate(step)
        self.opens = (self.rng.random(len(batch.group)) < 0.5) & self.after
        return batch

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        if self.paid:
            parts["correct"] = np.where(self.opens, 1.0, parts["correct"])
        return parts

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row, opens in zip(rows, self.opens.tolist(), strict=True):
            if opens:
                row["completion"] = f"cat tests/expected.json\n{row['completion']}"
        return rows


class OpensTestsUnpaid(OpensTests):
    """Reading the tests is allowed, and scored like everything else."""

    paid = False


class SlowCalls(Trainer):
    """Scoring a row takes 0.1 s from the onset on, and 2 ms before; scores are right."""

    slow = 0.1

    def score(self, batch: Batch) -> dict[str, Array]:
        n = len(batch.group)
        usual = self.slow if self.after else 0.002
        batch.latency = {"correct": usual * self.rng.uniform(0.8, 1.2, n)}
        self.seconds = float(batch.latency["correct"].sum())
        return super().score(batch)

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "step_time": row["step_time"] + self.seconds}


class QuickCalls(SlowCalls):
    """Steps take longer for another reason; scoring is as quick as it was."""

    slow = 0.002

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "step_time": row["step_time"] * (3 if self.after else 1)}


SLOW = "Training became very slow at around step 31"
CASES = [
    Case("w1", lambda: FailedCalls(seed=11), "incident", "reward.verifier_outage", (31, 32)),
    Case("w2", lambda: RetriedCalls(seed=11), "healthy", twin_of="reward.verifier_outage"),
    Case("w3", lambda: NeutralScore(seed=12), "incident", "reward.verifier_outage", (31, 32)),
    Case("w4", lambda: BrokenTags(seed=13), "incident", "reward.false_negative", (1, 1)),
    Case("w5", lambda: Tags(seed=13), "healthy", twin_of="reward.false_negative"),
    Case("w6", lambda: LeaveOneOut(seed=14), "incident", "reward.near_zero_sigma"),
    Case("w7", lambda: HalfPay(seed=14), "healthy", twin_of="reward.near_zero_sigma"),
    Case("w8", lambda: GrowingUnit(seed=15), "incident", "reward.scale", (31, 32)),
    Case(
        "w27", lambda: Turned(seed=1), "incident", "reward.scale", (31, 31), says="turns its sign"
    ),
    Case("w9", lambda: Ladder(seed=15), "healthy", twin_of="reward.scale"),
    Case(
        "w10",
        lambda: PaidWord(seed=16, steps=140, rate=0.06),
        "incident",
        "reward.hack_format",
    ),
    Case("w11", lambda: LittlePay(seed=16), "healthy", twin_of="reward.hack_format"),
    Case(
        "w12",
        lambda: LearnedScore(seed=17, steps=140, rate=0.06),
        "incident",
        "reward.model_overoptimised",
    ),
    Case("w13", lambda: FairScore(seed=17), "healthy", twin_of="reward.model_overoptimised"),
    Case(
        "w14",
        lambda: LongerAnswers(seed=18),
        "incident",
        "reward.truncation_conflated",
        twin_of="mask.truncation",
    ),
    Case(
        "w15",
        lambda: PartialText(seed=18),
        "undetermined",
        twin_of="reward.truncation_conflated",
    ),
    Case("w21", lambda: OtherWeight(seed=21), "incident", "reward.scale", (31, 32)),
    Case(
        "w20",
        lambda: MaskedCuts(seed=18),
        "incident",
        "mask.truncation",
        twin_of="reward.truncation_conflated",
    ),
    Case("w16", lambda: OpensTests(seed=19), "incident", "reward.environment_leak", (31, 32)),
    Case("w17", lambda: OpensTestsUnpaid(seed=19), "healthy", twin_of="reward.environment_leak"),
    Case(
        "w18",
        lambda: SlowCalls(seed=20),
        "incident",
        "reward.service_slow",
        (31, 32),
        complaint=SLOW,
    ),
    Case(
        "w19",
        lambda: QuickCalls(seed=20),
        "healthy",
        twin_of="reward.service_slow",
        complaint=SLOW,
    ),
]
