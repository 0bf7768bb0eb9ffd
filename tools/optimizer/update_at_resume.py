"""Is the first update after a resume as large as those before it?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.optimizer.update_size import CapturedUpdate, captured_updates
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.segments import resumes
from firstbad.tools.stats import robust_sd

FEWEST, REACH = 4, 20
"""Captured steps before a resume that its first one is compared with, and how far back they lie."""
NEAR = 2
"""Steps from a resume within which its first update is captured; what was lost is soon regained."""
SCATTER = 0.02
"""Least scatter of the updates before, as a share of their size."""
SURE = 6.0
"""Scatters from which a resume is dated."""


class UpdateAtResume(Dated):
    """Update over learning rate in the first captured step after a resume, against those before.

    Of several resumes the one where the two are farthest apart.
    """

    n_resumes: int
    """Resumes with captured steps on both sides; the other fields are None where there is none."""
    factor: float | None = None
    """Over the median of the steps before."""
    grad_factor: float | None = None
    """The gradient norm of that step over its own median before."""
    beyond_grad: float | None = None
    """The factor of the update over that of the gradient."""
    change_z: float | None = None
    """Size of the move of the update, in scatters of the steps before."""
    off_first: float | None = None
    """That update over the one of the run's first step, or its inverse, whichever is larger; None
    where that step was not captured."""


@dataclass(frozen=True)
class _Resume:
    step: int
    before: list[CapturedUpdate]
    after: CapturedUpdate

    @property
    def factor(self) -> float:
        """Update per rate over those before."""
        return _per_rate(self.after) / float(np.median([_per_rate(s) for s in self.before]))

    @property
    def grad_factor(self) -> float | None:
        """Gradient norm over those before."""
        grads = [s.grad for s in self.before if s.grad]
        if not self.after.grad or len(grads) < FEWEST:
            return None
        return self.after.grad / float(np.median(grads))

    @property
    def beyond_grad(self) -> float:
        """The one over the other."""
        return self.factor / (self.grad_factor or 1.0)

    @property
    def change_z(self) -> float:
        """Size of the move in scatters of those before."""
        before = np.array([_per_rate(s) for s in self.before])
        level = float(np.median(before))
        return abs(_per_rate(self.after) - level) / max(robust_sd(before), SCATTER * level)


@tool
def compare_updates_at_resume(run: Run) -> Measured[UpdateAtResume]:
    """Update over learning rate of the first step after each resume, against the steps before it.

    A resume that brings the optimizer back goes on as it was. Adam that begins anew moves every
    number by the whole rate in its first step, as in the first one of the run, and less and less
    after it. An update that goes with a larger gradient is not the optimizer's.

    Cannot tell: a state that was lost where no step was captured right after the resume.
    """
    updates = [u for u in captured_updates(run) if u.rate and np.isfinite(u.update)]
    found = []
    for step in resumes(run):
        before = [u for u in updates if step - REACH <= u.step < step][-2 * FEWEST :]
        after = [u for u in updates if step <= u.step < step + NEAR]
        if len(before) >= FEWEST and after and all(u.update for u in before):
            found.append(_Resume(step, before, after[0]))
    if not found:
        return Measured(
            UpdateAtResume(n_resumes=0), "no resume with captured updates on both sides"
        )
    worst = max(found, key=lambda r: abs(np.log(max(r.beyond_grad, 1e-9))))
    moved = worst.change_z > SURE
    first = _per_rate(worst.after) / _per_rate(updates[0]) if updates[0].step == 1 else 0.0
    metrics = UpdateAtResume(
        n_resumes=len(found),
        factor=round(worst.factor, 4),
        grad_factor=None if worst.grad_factor is None else round(worst.grad_factor, 4),
        beyond_grad=round(worst.beyond_grad, 4),
        change_z=round(min(worst.change_z, 1e6), 2),
        off_first=round(max(first, 1 / first), 4) if first else None,
        last_good_step=worst.before[-1].step,
        first_bad_step=worst.after.step if moved else None,
        sampled=moved and worst.after.step - worst.before[-1].step > 1,
    )
    rows = [*worst.before, *[u for u in updates if worst.step <= u.step][:8]]
    return Measured(
        metrics,
        f"at the resume at step {worst.step} the update per rate is "
        f"{number(metrics.factor, digits=3)} times its median before",
        tables=(
            Table(
                title="captured updates around the resume",
                columns=("step", "update over rate", "gradient norm"),
                rows=tuple((u.step, float(f"{_per_rate(u):.6g}"), u.grad) for u in rows),
            ),
        ),
        window=(worst.before[0].step, worst.after.step),
        signal="size of the first update after a resume",
    )


def _per_rate(update: CapturedUpdate) -> float:
    return update.update / (update.rate or 1.0)
