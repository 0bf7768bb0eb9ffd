"""Words of a memo that not every reader has in mind, each explained in a line where it is used."""

from __future__ import annotations

import re
from collections.abc import Iterable

from firstbad.agent.memo.words import Row

GLOSSARY: dict[str, tuple[str, str]] = {
    "band": (
        r"\bband\b",
        "what a signal did in the up to 40 steps before: its median, and three robust standard "
        "deviations to each side",
    ),
    "bfloat16 grid": (
        r"\bbfloat16 grid\b",
        "the values that the 16-bit number format can hold; finer numbers fall between them",
    ),
    "captures": (
        r"\bcaptur(?:e|es|ed)\b",
        "dumps of token ids, masks and log-probs of a training step",
    ),
    "contrast": (r"\bcontrast\b", "groups that hold both better and worse answers"),
    "gold answer": (r"\bgold\b", "the right answer, from the data set"),
    "group": (r"\bgroups?\b", "the answers sampled for one prompt, scored against one another"),
    "independent fact": (
        r"\bindependent facts?\b",
        "a check that holds whatever the layers before it turn out to be",
    ),
    "k1, k3": (
        r"\bk[13]\b",
        "two estimates of the KL divergence from the same sampled tokens; they agree when the "
        "tokens come from the policy that scores them",
    ),
    "KL budget": (
        r"\bKL budget\b",
        "the KL per answer that a converged policy would spend, mean squared advantage / "
        "(2 beta^2); near 100 % the KL weight alone holds the policy in place",
    ),
    "looked for": (
        r"\blooked for [<>=!]",
        "a condition of an earlier test of the same check; it was not met, so that a later test "
        "decided",
    ),
    "loss mask": (r"\bloss mask\b", "which tokens the loss is computed on"),
    "nats": (r"\bnats\b", "natural units of log-probability: 0.1 nats is a factor of 1.1"),
    "ratio": (
        r"\bratios?\b",
        "new over old probability of a sampled token; 1 before the weights move",
    ),
    "slope, r": (
        r"\bslope\b",
        "straight line through logged against recomputed values and its correlation: 1 and 1 when "
        "they are the same",
    ),
    "spread from step to step": (
        r"\bspread from step to step\b",
        "standard deviation of what one step changes by chance",
    ),
    "surprise": (
        r"\bsurprise\b",
        "how much less likely sampled tokens are than the policy's entropy says; 0 on average when "
        "they come from the policy that scores them",
    ),
}
"""Word -> pattern that finds it in a text, and what it means."""


def words_used(texts: Iterable[str]) -> tuple[Row, ...]:
    """The glossary's words that stand in the texts."""
    text = "\n".join(texts)
    return tuple(
        Row(word, meaning)
        for word, (pattern, meaning) in GLOSSARY.items()
        if re.search(pattern, text)
    )
