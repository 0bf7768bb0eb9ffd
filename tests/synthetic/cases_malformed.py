"""Answers without the form that was asked for, beside cut ones."""

from __future__ import annotations

from synthetic import policy
from synthetic.cases import Case
from synthetic.cases_reward import LongerAnswers, PartialText
from synthetic.trainer import Batch


class Tagged(LongerAnswers):
    """An answer that is named and ends stands in tags; one that names none is a wrong answer."""

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row, (ids, made) in zip(rows, self._made(batch), strict=True):
            if policy.said(ids[made]) is not None:
                row["completion"] = f"<answer>{row['completion']}</answer>"
        return rows


class TaggedPartial(Tagged, PartialText):
    """Cut answers are scored on what they say; malformed ones are still like wrong ones."""


CASES = [
    Case(
        "w70",
        lambda: Tagged(seed=18),
        "incident",
        "reward.truncation_conflated",
        checks={"reward.cut_scores": "fail"},
        says="Cut, malformed and wrong",
    ),
    Case(
        "w71",
        lambda: TaggedPartial(seed=18),
        "undetermined",
        checks={"reward.cut_scores": "pass"},
        twin_of="reward.truncation_conflated",
    ),
]
