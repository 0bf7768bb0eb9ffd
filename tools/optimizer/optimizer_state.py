"""Do a checkpoint's optimizer, schedule and model belong together? The steps that each counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.inert_pickle import Refused
from firstbad.tools.numbers import number
from firstbad.tools.optimizer.between_checkpoints import Began, began_between
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Checkpoint, Run
from firstbad.tools.saved_state import read_optimizer, read_scaler, read_scheduler
from firstbad.tools.segments import resumes

FEWEST = 5
"""Steps that may be missing: a loss scaler skips some."""
SHARE = 0.1
"""... and the share of the checkpoint's steps."""
RATE = 1.5
"""Factor between the rate stored for the next step and the one logged there."""
COUNTS = "steps counted in the checkpoints"
"""Title of the table that says which checkpoints fit together."""


class OptimizerState(Dated):
    """Step counts of the saved states."""

    n_states: int
    """Checkpoints whose optimizer state could be read."""
    n_unread: int
    """Files of optimizer or schedule that are there and could not be read."""
    resumed: bool
    settled: bool
    """The run was never resumed, or a state saved after its last resume could be read."""
    behind_steps: int | None
    """Most steps by which an optimizer state is behind the schedule of its own checkpoint; here and
    below of the states that no later one puts right."""
    behind_share: float | None
    """... over the steps of that checkpoint."""
    state_dropped: bool
    """Behind by more than five steps and a tenth."""
    both_behind_steps: int | None
    """Most steps by which optimizer and schedule are both behind their checkpoint."""
    both_dropped: bool
    """Behind by more than five steps and a tenth, after a good checkpoint or since a resume."""
    ahead_steps: int | None
    """Most steps by which an optimizer is ahead of its checkpoint, beyond what the first had."""
    state_ahead: bool
    """Ahead by more than five steps and a tenth."""
    schedule_behind_steps: int | None
    """Most steps by which a schedule is behind an optimizer that counts right."""
    schedule_dropped: bool
    """Behind by more than five steps and a tenth."""
    saved_wrong: int
    """Checkpoints that do not fit together though a later one does: not to be gone back to."""
    own_step_off: int | None
    """Largest distance between the step in a checkpoint's name and the one in its own state."""
    rate_off_factor: float | None
    """Largest factor, up or down, between the rate that a checkpoint stores for the next step and
    the rate that was logged; None where no checkpoint has both."""
    rate_stored: float | None
    """That rate."""
    rate_logged: float | None
    """... and the logged one."""


class _Saved(NamedTuple):
    """What one checkpoint counts."""

    step: int
    own: int | None
    """Step that its own state file gives."""
    counted: int
    """Updates of the optimizer, in steps."""
    planned: int | None
    """Steps of the schedule."""
    rate: float | None
    skipped: int = 0
    """Updates that its loss scaler shows to have been skipped: neither counts them."""

    @property
    def behind(self) -> int:
        """Steps by which the optimizer is behind its schedule, skipped ones apart."""
        late = self.due - self.counted
        return max(0, late - self.skipped) if late > 0 else late

    @property
    def due(self) -> int:
        """Steps that its optimizer should have counted.

        Some launchers advance the schedule once per process: never more than the folder says.
        """
        return self.step if self.planned is None else min(self.planned, self.step)

    @property
    def schedule_behind(self) -> int:
        return max(0, min(self.step, self.counted) - self.due)

    @property
    def both_behind(self) -> int:
        return max(0, self.step - max(self.counted, self.due) - self.skipped)


T = TypeVar("T")


@tool
def check_optimizer_state(run: Run) -> Measured[OptimizerState]:
    """Steps that Adam has counted, against those of the schedule and of the checkpoint itself.

    All of `step` in optimizer.pt, `last_epoch` in scheduler.pt, `global_step` in
    trainer_state.json and the step in the folder's name are equal in a good checkpoint. An
    optimizer that is behind began anew at the step where it counts 0; one that is ahead is of a
    later step than the model. The stored rate is that of the next step. Files are not unpickled:
    their operations are listed and followed.

    Steps that the loss scaler of the checkpoint shows to have been skipped are counted by neither.

    Cannot tell: moments that were lost or mixed up while the count was kept.
    """
    resumed = resumes(run)
    last_resume = max(resumed, default=None)
    if not run.checkpoints and last_resume is None and run.last_step is None:
        raise NoData("no steps, checkpoints or resumes")
    unread: list[str] = []
    saved = _in_steps([found for c in run.checkpoints if (found := _saved(c, unread)) is not None])
    carried = max(0, saved[0].counted - saved[0].step) if saved else 0
    fits = {s.step: _fits(s, carried) for s in saved}
    # One that is followed by a good one was saved wrong: training did not go on from it.
    good = max((step for step, fit in fits.items() if fit), default=0)
    lasting = [s for s in saved if s.step > good] or saved[-1:]
    behind, at = max(((s.behind, s.step) for s in lasting), default=(None, None))
    dropped = at is not None and _far(behind, at)
    ahead, ahead_at = max(
        ((s.counted - s.step - carried, s.step) for s in lasting), default=(None, 0)
    )
    is_ahead = not dropped and _far(ahead, ahead_at)
    late, late_at = max(((s.schedule_behind, s.step) for s in lasting), default=(None, 0))
    late_schedule = not dropped and not is_ahead and _far(late, late_at)
    both, both_at = max(((s.both_behind, s.step) for s in lasting), default=(None, 0))
    seen = any(fit for step, fit in fits.items() if step < both_at) or both in {
        resume - 1 for resume in resumed
    }
    both_dropped = not dropped and seen and _far(both, both_at)
    began = Began(max((step for step, fit in fits.items() if fit), default=None), None)
    if dropped and behind is not None:
        # The checkpoints before it count right, so it began anew `behind` steps into the run.
        began = Began(behind, behind + 1)
    elif both_dropped and both is not None:
        began = Began(both, both + 1)
    elif late_schedule and late is not None:
        began = Began(late, late + 1)
    elif is_ahead:
        began = began_between([s for s, fit in fits.items() if fit], ahead_at, resumed)
    off, stored, logged, off_at = _rate_off(run, saved)
    if began.first_bad_step is None and off is not None and off > RATE:
        began = Began(off_at, off_at + 1, sampled=False)
    metrics = OptimizerState(
        n_states=len(saved),
        n_unread=len(unread),
        resumed=bool(resumed),
        settled=last_resume is None or any(s.step > last_resume for s in saved),
        behind_steps=behind,
        behind_share=None if behind is None or not at else round(behind / at, 4),
        state_dropped=dropped,
        both_behind_steps=both,
        both_dropped=both_dropped,
        ahead_steps=ahead,
        state_ahead=is_ahead,
        schedule_behind_steps=late,
        schedule_dropped=late_schedule,
        saved_wrong=sum(not fit for step, fit in fits.items() if step < good),
        own_step_off=max((abs(s.own - s.step) for s in saved if s.own is not None), default=None),
        rate_off_factor=None if off is None else round(off, 4),
        rate_stored=stored,
        rate_logged=logged,
        last_good_step=began.last_good_step,
        first_bad_step=began.first_bad_step,
        from_start=began.from_start,
        sampled=began.sampled and is_ahead,
    )
    if saved:
        text = f"{len(saved)} saved optimizer states: "
        if dropped:
            text += f"at checkpoint {at} it has counted {behind} steps less than the schedule"
        elif both_dropped:
            text += f"at checkpoint {both_at} it and the schedule have counted {both} steps less"
        elif is_ahead:
            text += f"at checkpoint {ahead_at} it has counted {ahead} steps more than the model"
        elif late_schedule:
            text += f"at checkpoint {late_at} the schedule has counted {late} steps less than it"
        else:
            text += "all count the steps of their schedule"
        if off is not None and off > RATE and stored is not None and logged is not None:
            text += (
                f"; checkpoint {off_at} stores a rate of {number(stored, digits=3)} for the next "
                f"step, {number(logged, digits=3)} is logged"
            )
    else:
        text = "no saved optimizer state that can be read"
        text += f", and the run was resumed at step {last_resume}" if last_resume else ""
    if unread:
        text += f"; {len(unread)} files not read: {unread[0]}"
    rows: list[tuple[Scalar, ...]] = [
        (s.step, s.own, s.counted, s.planned, fits[s.step]) for s in saved
    ]
    rows += [(c.step, c.state_step, None, None, False) for c in _without_optimizer(run)]
    rows.sort(key=lambda row: int(row[0] or 0))
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title=COUNTS,
                columns=("checkpoint", "its own state", "optimizer", "schedule", "fits"),
                rows=tuple(rows[-40:]),
                cut_rows=max(0, len(rows) - 40),
            ),
        )
        if rows
        else (),
        sources=run.sources,
        signal="steps counted by the optimizer",
    )


def _without_optimizer(run: Run) -> list[Checkpoint]:
    """Checkpoints that hold none, in a run that saves them."""
    none = [c for c in run.checkpoints if "optimizer.pt" not in c.files]
    return none if len(none) < len(run.checkpoints) else []


def _far(steps: int | None, at: int) -> bool:
    return steps is not None and steps > max(FEWEST, SHARE * at)


def _fits(saved: _Saved, carried: int) -> bool:
    """Whether the parts of a checkpoint are of the same step."""
    gaps = (
        *(saved.behind, saved.counted - saved.step - carried),
        *(saved.schedule_behind, saved.both_behind),
    )
    return not any(_far(gap, saved.step) for gap in gaps) and saved.own in (None, saved.step)


def _in_steps(saved: list[_Saved]) -> list[_Saved]:
    """Counts in steps of the run: some trainers update several times in each of their steps."""
    if not saved or not all(s.step for s in saved):
        return saved
    each = round(float(np.median([s.counted / s.step for s in saved])))
    if each < 2 or any(_far(abs(s.counted - each * s.step), each * s.step) for s in saved):
        return saved
    return [s._replace(counted=round(s.counted / each)) for s in saved]


def _saved(checkpoint: Checkpoint, unread: list[str]) -> _Saved | None:
    """What a checkpoint counts; None where its optimizer is not there or can't be read."""

    def read(name: str, reader: Callable[..., T]) -> T | None:
        if name not in checkpoint.files:
            return None
        try:
            return reader(checkpoint.path / name)
        except Refused as error:
            unread.append(f"`{checkpoint.path.name}/{name}`: {error}")
            return None

    optimizer, schedule = read("optimizer.pt", read_optimizer), read("scheduler.pt", read_scheduler)
    if optimizer is None or not optimizer.step_counts:
        return None
    return _Saved(
        step=checkpoint.step,
        own=checkpoint.state_step,
        counted=max(optimizer.step_counts),
        planned=None if schedule is None else schedule.last_epoch,
        rate=optimizer.groups[0].learning_rate if optimizer.groups else None,
        skipped=_skipped(checkpoint),
    )


def _skipped(checkpoint: Checkpoint) -> int:
    """Updates that its loss scaler accounts for; one that is not in use is saved without a scale.

    At a scale of 0 every update is skipped, and nothing counts them.
    """
    if "scaler.pt" not in checkpoint.files:
        return 0
    try:
        scaler = read_scaler(checkpoint.path / "scaler.pt")
    except Refused:
        return 0
    return scaler.skipped_least if scaler.scale else checkpoint.step


def _rate_off(
    run: Run, saved: Sequence[_Saved]
) -> tuple[float | None, float | None, float | None, int]:
    """Largest factor of a logged rate over the one stored for its step, both, and the checkpoint.

    Frameworks that log the rate after it was advanced log it one step early: either one may agree.
    """
    signal = run.signals.get("learning_rate")
    worst: tuple[float | None, float | None, float | None, int] = (None, None, None, 0)
    for each in saved if signal is not None else ():
        after = signal.at(each.step + 1) if signal is not None else None
        at = signal.at(each.step) if signal is not None else None
        near = [rate for rate in (after, at) if rate]
        if not each.rate or after is None or not near:
            continue
        factors = [float(np.exp(abs(np.log(rate / each.rate)))) for rate in near]
        factor, logged = min(zip(factors, near, strict=True))
        if worst[0] is None or factor > worst[0]:
            worst = (factor, each.rate, logged, each.step)
    return worst
