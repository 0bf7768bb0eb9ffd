"""Checkpoints to go back to: the last good one, or the one with the fewest bad updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firstbad.playbooks.gate import Seen
from firstbad.playbooks.results import LeastBad, Onset

NO_OPTIMIZER = "it holds no optimizer state"


def unfit_checkpoints(seen: Seen) -> dict[int, str]:
    """Checkpoints whose parts do not belong together, by step: what is wrong with each."""
    # Imported here: a verdict that is only shown needs no numpy.
    from firstbad.tools.optimizer.moments import READABLE
    from firstbad.tools.optimizer.optimizer_state import COUNTS

    found: dict[int, str] = {}
    for table in (table for evidence in seen.values() for table in evidence.tables):
        for row in table.rows if table.title in (COUNTS, READABLE) else ():
            if row[-1] is False and isinstance(row[0], int):
                told = _counts(row) if table.title == COUNTS else "its moments do not hold"
                found.setdefault(row[0], told)
    return found


def _counts(row: Sequence[object]) -> str:
    """Steps of the parts of a checkpoint, in words."""
    _, own, optimizer, schedule, _ = row
    if optimizer is None:
        return NO_OPTIMIZER
    parts = (("model", own), ("optimizer", optimizer), ("schedule", schedule))
    return "its " + ", its ".join(f"{name} is of step {n}" for name, n in parts if n is not None)


def passed_over(unfit: Mapping[int, str], onset: Onset, named: str | None) -> tuple[str, ...]:
    """Checkpoints before the onset that are newer than the one named for the rollback, and why."""
    if onset.first_bad is None or onset.from_start:
        return ()
    start = -1 if named is None else int(named.rpartition("-")[2])
    return tuple(
        f"checkpoint-{step}: {why}"
        for step, why in sorted(unfit.items())
        if start < step < onset.earliest
    )


def weights_alone(over: Sequence[str]) -> str | None:
    """The newest checkpoint that was passed over for want of its optimizer alone."""
    return next((o.partition(":")[0] for o in reversed(over) if o.endswith(NO_OPTIMIZER)), None)


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
