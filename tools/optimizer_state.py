"""Does a saved optimizer state belong to its checkpoint? Steps that Adam and the schedule count."""

from __future__ import annotations

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Checkpoint, Run
from firstbad.tools.torch_state import optimizer_steps, scheduler_steps

FEWEST = 5
"""Steps that may be missing: a loss scaler skips some."""
SHARE = 0.1
"""... and the share of the checkpoint's steps."""


class OptimizerState(Dated):
    """Step counts of the saved states."""

    n_states: int
    """Checkpoints whose optimizer state could be read."""
    resumed: bool
    settled: bool
    """The run was never resumed, or a state saved after its last resume could be read."""
    behind_steps: int | None
    """Most steps by which an optimizer state is behind the schedule of its own checkpoint."""
    behind_share: float | None
    """... over the steps of that checkpoint."""
    state_dropped: bool
    """Behind by more than five steps and a tenth."""


@tool
def check_optimizer_state(run: Run) -> Measured[OptimizerState]:
    """Steps that Adam has counted, against those of the schedule in the same checkpoint.

    All of `step` in optimizer.pt, `last_epoch` in scheduler.pt and the step in the folder's name
    are equal in a good checkpoint. An optimizer that is behind began anew at the step where it
    counts 0. Files are not unpickled: the two numbers are read off their listed operations.

    Cannot tell: moments that were lost or mixed up while the count was kept.
    """
    resumes = [e.step for e in run.events if e.kind == "resume" and e.step is not None]
    last_resume = max(resumes, default=None)
    if not run.checkpoints and last_resume is None and run.last_step is None:
        raise NoData("no steps, checkpoints or resumes")
    rows = [(c.step, *found) for c in run.checkpoints if (found := _steps(c)) is not None]
    gaps = [(planned - counted, step) for step, counted, planned in rows]
    behind, at = max(gaps, default=(None, None))
    dropped = behind is not None and at is not None and behind > max(FEWEST, SHARE * at)
    # The checkpoints before it count right, so it began anew `behind` steps into the run.
    good = [step for gap, step in gaps if gap <= FEWEST and (at is None or step < at)]
    metrics = OptimizerState(
        n_states=len(rows),
        resumed=bool(resumes),
        settled=last_resume is None or any(step > last_resume for step, *_ in rows),
        behind_steps=behind,
        behind_share=None if behind is None or not at else round(behind / at, 4),
        state_dropped=dropped,
        last_good_step=behind if dropped else max(good, default=None),
        first_bad_step=behind + 1 if dropped and behind is not None else None,
    )
    if rows:
        text = f"{len(rows)} saved optimizer states: "
        text += (
            f"at checkpoint {at} it has counted {behind} steps less than the schedule"
            if dropped
            else "all count the steps of their schedule"
        )
    else:
        text = "no saved optimizer state that can be read"
        text += f", and the run was resumed at step {last_resume}" if resumes else ""
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title="steps counted in the checkpoints",
                columns=("checkpoint", "optimizer", "schedule"),
                rows=tuple(rows[-20:]),
                cut_rows=max(0, len(rows) - 20),
            ),
        )
        if rows
        else (),
        sources=run.sources,
        signal="steps counted by the optimizer",
    )


def _steps(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """Steps of the optimizer, and of its schedule or checkpoint; None where unread."""
    if "optimizer.pt" not in checkpoint.files:
        return None
    counted = optimizer_steps(checkpoint.path / "optimizer.pt")
    if counted is None:
        return None
    planned = None
    if "scheduler.pt" in checkpoint.files:
        planned = scheduler_steps(checkpoint.path / "scheduler.pt")
    # Some launchers advance the schedule once per process: never more than the folder says.
    return counted, checkpoint.step if planned is None else min(planned, checkpoint.step)
