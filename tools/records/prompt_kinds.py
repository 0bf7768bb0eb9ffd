"""Kinds of prompts: a word that the prompts of one set have and those of another lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

FEWEST = 20
"""Prompts on each side."""
MARKS, LACKS = 0.95, 0.02
"""Shares of the one side's prompts that have the word, and of the other side's at most."""


def telling_word(marked: Sequence[str], others: Sequence[str]) -> str | None:
    """The word that tells marked prompts from the others, the most telling one; None without one.

    Prompts that come again count as one.
    """
    ours, theirs = ({prompt: _words(prompt) for prompt in side} for side in (marked, others))
    if len(ours) < FEWEST or len(theirs) < FEWEST:
        return None
    here, there = (Counter(w for words in side.values() for w in words) for side in (ours, theirs))
    found = [
        (n / len(ours) - there[word] / len(theirs), word)
        for word, n in here.items()
        if n >= MARKS * len(ours) and there[word] <= LACKS * len(theirs)
    ]
    return max(found)[1] if found else None


def _words(prompt: str) -> set[str]:
    return {word for word in prompt.lower().split() if len(word) > 1}
