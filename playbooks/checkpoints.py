"""Checkpoints to go back to: the last good one, or the one with the fewest bad updates."""

from __future__ import annotations

from collections.abc import Sequence

from firstbad.playbooks.results import LeastBad, Onset


def resume_from(onset: Onset | None, checkpoint_steps: Sequence[int]) -> str | None:
    """Last checkpoint saved before the first bad step was trained on; None spoils no checkpoint."""
    if onset is None:
        return f"checkpoint-{max(checkpoint_steps)}" if checkpoint_steps else None
    if onset.first_bad is None or onset.from_start:
        return None
    earlier = [step for step in checkpoint_steps if step < onset.earliest]
    return f"checkpoint-{max(earlier)}" if earlier else None


def least_bad_of(onset: Onset, checkpoint_steps: Sequence[int]) -> LeastBad | None:
    """The earliest checkpoint that carries the fault, where none is earlier than the fault."""
    if onset.first_bad is None or onset.from_start or resume_from(onset, checkpoint_steps):
        return None
    later = [step for step in checkpoint_steps if step >= onset.first_bad]
    if not later:
        return None
    saved = min(later)
    bad_until = saved if onset.last_bad is None else min(saved, onset.last_bad)
    fewest = max(bad_until - onset.first_bad + 1, 0)
    most = bad_until - int(onset.earliest) + 1
    return LeastBad(
        checkpoint=f"checkpoint-{saved}",
        updates=fewest,
        updates_most=most if most > fewest else None,
    )
