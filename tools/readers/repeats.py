"""Batches that a source wrote twice: TRL does not empty its buffer between optimizer steps.

Texts tell, and names of samples where the source gives them: under other names, texts that may well
be drawn again are new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from firstbad.tools.drawn_again import may_be_drawn_again
from firstbad.tools.run import LoadBatches, RolloutBatch


class Repeats:
    """Wraps a loader, and marks a batch with the content of the steps just before it."""

    def __init__(self, steps: Sequence[int], load: LoadBatches) -> None:
        """`load` reads batches of `steps`."""
        ordered = sorted(steps)
        self._before = dict(zip(ordered[1:], ordered, strict=False))
        self._load = load
        self._digests: dict[int, bytes] = {}

    def load(self, steps: Sequence[int]) -> Iterator[RolloutBatch]:
        """The batches of these steps, with `repeats_step` set where one is a repetition."""
        for batch in self._load(steps):
            own = self._digests[batch.step] = _content(batch)
            first = None
            at = self._before.get(batch.step)
            while len(batch) and at is not None and self._digest(at) == own:
                first, at = at, self._before.get(at)
            yield batch if first is None else replace(batch, repeats_step=first)

    def _digest(self, step: int) -> bytes:
        if step not in self._digests:
            self._digests[step] = _content(next(self._load([step])))
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
    if batch.sample is not None and may_be_drawn_again(batch):
        hasher.update("\0".join(batch.sample).encode("utf-8", "surrogatepass"))
    return hasher.digest()
