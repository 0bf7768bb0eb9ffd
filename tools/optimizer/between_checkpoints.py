"""When something began that only checkpoints show: between two of them, or at a resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Began(NamedTuple):
    """Onset of what a checkpoint shows."""

    last_good_step: int | None
    first_bad_step: int | None
    from_start: bool = False
    sampled: bool = True


def began_between(good: Iterable[int], bad: int, resumed: Sequence[int]) -> Began:
    """Onset of what is wrong in checkpoint `bad` and right in the checkpoints `good`.

    A state changes hands at a resume: where the run was resumed once between the last good
    checkpoint and the bad one, it began there.
    """
    before = max((step for step in good if step < bad), default=None)
    if before is None:
        return Began(None, bad, from_start=True)
    between = [step for step in resumed if before < step <= bad]
    if len(between) == 1:
        return Began(between[0] - 1, between[0], sampled=False)
    return Began(before, bad)
