"""Cut answers that neither the loss nor the statistics of their group take, as some trainers do."""

from __future__ import annotations

import numpy as np

from synthetic.cases import Case
from synthetic.cases_masks import CutMasked
from synthetic.cases_reward import LongerAnswers
from synthetic.policy import Array, Ints
from synthetic.trainer import Batch


class LeftOut(CutMasked):
    """Mean and spread are those of the answers that end; cut ones get an advantage of 0."""

    def generate(self, step: int) -> Batch:
        """See the class."""
        batch = super().generate(step)
        self.ended = np.array([reason == "stop" for reason in batch.finish])
        return batch

    def apart(self) -> bool:
        """Whether cut answers do not count in this step."""
        return True

    def advantages(self, total: Array, group: Ints) -> Array:
        """See the class."""
        if not self.apart():
            return super().advantages(total, group)
        out = np.zeros(len(total))
        for g in np.unique(group):
            own = (group == g) & self.ended
            if own.sum() > 1:
                part = total[own]
                out[own] = (part - part.mean()) / (part.std(ddof=1) + 1e-4)
        return out


class CountedLater(LeftOut):
    """From the onset on they count, though they are still not trained."""

    def apart(self) -> bool:
        """See the class."""
        return not self.after


class LeftOutUnnamed(LeftOut):
    """No setting says how advantages are computed."""

    def config(self) -> dict[str, object]:
        """See the class."""
        stated = super().config()
        del stated["scale_rewards"]
        return stated


class WrongRows(LeftOut):
    """From the onset on the mean is that of the whole batch, over the answers that end."""

    def advantages(self, total: Array, group: Ints) -> Array:
        """See the class."""
        return super().advantages(total, group * 0 if self.after else group)


class LongerLeftOut(LeftOut, LongerAnswers):
    """More and more answers run into the cap, score 0, and teach nothing."""


CASES = [
    Case(
        "w22",
        lambda: LeftOut(cap=5),
        "healthy",
        checks={"reward.advantages": "pass", "masks.cut_answers": "pass"},
        twin_of="reward.wrong_group",
    ),
    Case("w23", lambda: LeftOutUnnamed(cap=5), "healthy", twin_of="reward.wrong_group"),
    Case(
        "w24",
        lambda: CountedLater(cap=5),
        "incident",
        "reward.wrong_group",
        (31, 32),
        says="begin to count",
    ),
    Case("w25", lambda: WrongRows(cap=5), "incident", "reward.wrong_group", (31, 32)),
    Case(
        "w26",
        lambda: LongerLeftOut(seed=18),
        "undetermined",
        checks={"reward.cut_scores": "pass"},
        twin_of="reward.truncation_conflated",
    ),
]
