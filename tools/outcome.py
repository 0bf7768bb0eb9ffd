"""Which reward part judges the outcome: by its name, else the heaviest."""

from __future__ import annotations

from firstbad.tools.rewards import reward_weights
from firstbad.tools.run import RolloutBatch, Run

OUTCOME_WORDS = ("correct", "accura", "answer", "verif", "outcome", "match", "solve", "exact")


def looks_like_outcome(name: str) -> bool:
    """Whether a part is named like a judgement of the answer."""
    return any(word in name.lower() for word in OUTCOME_WORDS)


def outcome_part(run: Run, batches: list[RolloutBatch]) -> str:
    """The part that looks like the outcome: two values, named like correctness, else heaviest."""
    names = list(batches[0].rewards)
    if not names:
        return ""
    named = [n for n in names if looks_like_outcome(n)]
    pool = named or names
    weights = reward_weights(run, len(names))
    if weights is not None:
        by_weight = dict(zip(names, weights, strict=True))
        return max(pool, key=lambda n: float(by_weight[n]))
    return pool[0]
