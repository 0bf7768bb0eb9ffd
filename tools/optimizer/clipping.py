"""How often the gradient is clipped, and whether the optimizer feels it."""

from __future__ import annotations

import re

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.inert_pickle import Refused
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.saved_state import read_optimizer

LASTING = 0.9
"""Share of the steps from some step on that are clipped, for that step to date it."""
_BY_SIZE = re.compile(r"(^|[^a-z])(sgd|lomo)", re.I)
"""Names of optimizers whose step goes with the size of the gradient."""


class Clipping(Dated):
    """The norm logged before clipping, against the clip value."""

    n_steps: int
    clip_value: float
    hit_share: float
    """Share of the steps whose norm is above the clip value."""
    late_hit_share: float
    """The same in the last third."""
    norm_over_clip_median: float
    n_captured: int
    """Updates of which a recorder kept the norm on both sides of clipping."""
    after_over_clip: float | None
    """Largest of the norms after clipping over the clip value; above 1 it was not clipped."""
    scale_free: bool | None
    """The optimizer divides by the size of the gradient, as Adam does, so that clipping all steps
    alike changes little. By its name, by the saved state, or the trainer's default; None where
    neither is known."""


@tool
def measure_clipping(run: Run) -> Measured[Clipping]:
    """Share of the steps at which the gradient is clipped, and by how much.

    The logged norm is that before clipping. Where all steps are clipped, each is of the same
    length whatever the gradient was: under SGD the clip value has become the step size. Adam
    divides by the size of past gradients and hardly feels it.

    Cannot tell: the norm after clipping, from metrics; whether the clip value was meant so.
    """
    signal = run.signals.get("grad_norm_preclip")
    clip = run.config.number("max_grad_norm")
    if signal is None or len(signal.values) < 10:
        raise NoData("fewer than ten logged gradient norms")
    if not clip:
        raise NoData("no clip value (`max_grad_norm` is 0 or not stated)")
    hits = signal.values > clip
    after = np.cumsum(hits[::-1])[::-1] / np.arange(len(hits), 0, -1)
    lasting = np.flatnonzero(hits & (after > LASTING))
    lasting = lasting[lasting <= len(hits) - 10]
    first = int(lasting[0]) if len(lasting) else None
    steps = signal.steps
    captured = [
        norms.after_clip / (norms.clip_value or clip)
        for kept in run.flight
        for norms in kept.norms
        if norms.after_clip is not None
    ]
    metrics = Clipping(
        n_steps=len(hits),
        clip_value=clip,
        hit_share=round(float(hits.mean()), 6),
        late_hit_share=round(float(np.array_split(hits, 3)[2].mean()), 6),
        norm_over_clip_median=round(float(np.median(signal.values)) / clip, 4),
        n_captured=len(captured),
        after_over_clip=round(max(captured), 4) if captured else None,
        scale_free=_scale_free(run),
        last_good_step=int(steps[first - 1]) if first else None,
        first_bad_step=None if first is None else int(steps[first]),
        from_start=first == 0,
    )
    return Measured(
        metrics,
        f"the gradient norm is above the clip value of {clip:g} in {percent(metrics.hit_share)} of "
        f"{len(hits)} steps, its median is {number(metrics.norm_over_clip_median, digits=2)} times "
        "that value",
        window=(int(steps[0]), int(steps[-1])),
        signal="gradient norm against the clip value",
    )


def _scale_free(run: Run) -> bool | None:
    named = run.config.text("optim")
    if named is not None:
        return _BY_SIZE.search(named) is None
    for checkpoint in reversed(run.checkpoints):
        if "optimizer.pt" not in checkpoint.files:
            continue
        try:
            saved = read_optimizer(checkpoint.path / "optimizer.pt")
        except Refused:
            continue
        if saved.groups:
            kept = {name for p in saved.parameters for name in p.tensors}
            return all(group.is_adam for group in saved.groups) or "exp_avg" in kept
    return True if run.config.of_trainer else None
