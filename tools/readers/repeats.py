"""Batches that a source wrote twice: TRL does not empty its buffer between optimizer steps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from firstbad.tools.run import RolloutBatch


class Repeats:
    """Wraps a loader, and marks a batch with the content of the steps just before it."""

    def __init__(self, steps: Sequence[int], load: Callable[[int], RolloutBatch]) -> None:
        """`load` reads one step's batch."""
        ordered = sorted(steps)
        self._before = dict(zip(ordered[1:], ordered, strict=False))
        self._load = load
        self._digests: dict[int, bytes] = {}

    def load(self, step: int) -> RolloutBatch:
        """The batch of one step, with `repeats_step` set when it is a repetition."""
        batch = self._load(step)
        own = self._digests[step] = _content(batch)
        first = None
        at = self._before.get(step)
        while len(batch) and at is not None and self._digest(at) == own:
            first, at = at, self._before.get(at)
        return batch if first is None else replace(batch, repeats_step=first)

    def _digest(self, step: int) -> bytes:
        if step not in self._digests:
            self._digests[step] = _content(self._load(step))
        return self._digests[step]


def _content(batch: RolloutBatch) -> bytes:
    """Digest of what was sampled and how it was scored; the step does not count."""
    hasher = hashlib.blake2b(digest_size=16)
    for texts in (batch.prompts, batch.completions):
        hasher.update("\0".join(texts).encode("utf-8", "surrogatepass"))
    for name, values in batch.rewards.items():
        hasher.update(name.encode())
        hasher.update(values.tobytes())
    if batch.advantage is not None:
        hasher.update(batch.advantage.tobytes())
    return hasher.digest()
