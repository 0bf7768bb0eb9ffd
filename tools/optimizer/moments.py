"""Can a saved optimizer's moments be those of any gradients? Adam's averages, held together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.inert_pickle import Refused
from firstbad.tools.numbers import percent
from firstbad.tools.optimizer.between_checkpoints import Began, began_between
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Checkpoint, Run
from firstbad.tools.saved_state import ParameterState, read_optimizer
from firstbad.tools.segments import resumes

MOST_STATES, MOST_PARAMETERS = 8, 400
"""States that are read, the last ones, and parameters of each, spread evenly over it."""
TINY = 1e-15
"""A first moment below it may have a second one too small for 32 bits."""
ROUNDING = 1.01
FEWEST = 5
"""Updates that must be counted before moments of 0 say anything."""
BROKEN, BLANK, ON_GRID, REPEATED = 0.001, 0.9, 0.99, 0.5
"""Shares of the numbers beyond which a state is dated: impossible, 0, on the grid, repeated."""
READABLE = "moments in the checkpoints"
"""Title of the table that says which states hold."""


class Moments(Dated):
    """What Adam's averages hold, in the state where it is worst; shares of the sampled numbers."""

    n_states: int
    """Checkpoints whose moments were read."""
    n_numbers: int
    """Pairs of moments in the last of them."""
    second_zero_share: float
    """First moment far from 0, second moment 0: an update divided by epsilon alone."""
    impossible_share: float
    """First moment larger than any gradients allow that gave the second one."""
    largest_over_bound: float | None
    """Largest first moment over the largest that its second one allows; at most 1 in a state that
    belongs together. None where the averages are not torch's Adam with 32 bits."""
    blank_share: float
    """In tensors whose moments are all 0 though updates were counted."""
    norm_logged: float | None
    """Median gradient norm logged in the ten steps up to that checkpoint."""
    on_grid_share: float
    """Stored with 32 bits, and as bfloat16 would hold them."""
    repeated_share: float
    """Stored with 32 bits, and equal to another number of the same tensor."""
    coarse: bool
    """Nearly all on the grid, or half of them repeated, in any state."""
    coarse_resumed: bool
    """The run was resumed from such a state, or a resume brought it about."""
    nonfinite_share: float
    below_eps_share: float
    """Root of the second moment below Adam's epsilon, which then sets the size of the update."""


class _Shares(NamedTuple):
    step: int
    n: int = 0
    second_zero: float = 0.0
    impossible: float = 0.0
    over_bound: float | None = None
    blank: float = 0.0
    grid: float = 0.0
    repeated: float = 0.0
    nonfinite: float = 0.0
    below_eps: float = 0.0

    @property
    def coarse(self) -> bool:
        return self.grid > ON_GRID or self.repeated > REPEATED

    @property
    def holds(self) -> bool:
        """Whether training can go on from it."""
        broken = max(self.second_zero, self.impossible, self.nonfinite) > BROKEN
        return not broken and self.blank <= BLANK


@tool
def check_moments(run: Run) -> Measured[Moments]:
    """First and second moments of the saved optimizer states, number by number.

    Both are averages of the same gradients, so abs(m) is at most sqrt(v) times
    (1-b1) / sqrt((1-b2) (1-b1^2/b2)), whatever they were (Cauchy and Schwarz): 7.3 for betas 0.9
    and 0.999, 2.3 for 0.9 and 0.99. A state above it was not made by one optimizer: moments of
    different steps, lost, mixed up or rounded. Up to 2,048 numbers of each tensor are read, and
    nothing is unpickled.

    Cannot tell: moments of other parameters or other steps that happen to fit together.
    """
    read = [found for c in run.checkpoints[-MOST_STATES:] if (found := _shares(c)) is not None]
    if not read:
        raise NoData("no saved optimizer state with first and second moments")
    resumed = resumes(run)
    spoiled = next((s for s in read if not s.holds), None)
    began = Began(read[-1].step, None)
    if spoiled is not None:
        began = began_between([s.step for s in read if s.holds], spoiled.step, resumed)
    handed_on = _coarse_since(read, resumed)
    if spoiled is None and handed_on is not None:
        began = Began(handed_on - 1, handed_on, sampled=False)
    norm = run.signals.get("grad_norm_preclip")
    at = max(read, key=lambda s: s.blank).step
    norms = norm.between(at - 9, at) if norm is not None else np.empty(0)
    bounds = [s.over_bound for s in read if s.over_bound is not None]
    metrics = Moments(
        n_states=len(read),
        n_numbers=read[-1].n,
        second_zero_share=max(s.second_zero for s in read),
        impossible_share=max(s.impossible for s in read),
        largest_over_bound=max(bounds, default=None),
        blank_share=max(s.blank for s in read),
        norm_logged=round(float(np.median(norms)), 6) if len(norms) else None,
        on_grid_share=max(s.grid for s in read),
        repeated_share=max(s.repeated for s in read),
        coarse=any(s.coarse for s in read),
        coarse_resumed=handed_on is not None,
        nonfinite_share=max(s.nonfinite for s in read),
        below_eps_share=max(s.below_eps for s in read),
        last_good_step=began.last_good_step,
        first_bad_step=began.first_bad_step,
        from_start=began.from_start,
        sampled=spoiled is not None and began.sampled,
    )
    text = f"moments of {len(read)} saved optimizer states, {read[-1].n} pairs in the last: "
    if metrics.largest_over_bound is None:
        text += "stored with 16 bits, or not of torch's Adam"
    else:
        text += (
            f"the largest first moment is {metrics.largest_over_bound:.2f} of what its second one "
            "allows"
        )
    for share, what in (
        (metrics.second_zero_share, "have no second moment"),
        (metrics.blank_share, "are 0 throughout"),
        (metrics.on_grid_share, "are as coarse as bfloat16"),
        (metrics.repeated_share, "repeat another"),
        (metrics.nonfinite_share, "are not finite"),
    ):
        if share > BROKEN:
            text += f"; {percent(share)} {what}"
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title=READABLE,
                columns=(
                    *("checkpoint", "pairs", "no second moment", "impossible", "over bound"),
                    *("all 0", "on the bfloat16 grid", "repeated", "not finite", "below epsilon"),
                    "holds",
                ),
                rows=tuple((*s, s.holds) for s in read),
            ),
        ),
        sources=run.sources,
        window=(read[0].step, read[-1].step),
        signal="moments of the optimizer",
    )


def _coarse_since(read: Sequence[_Shares], resumed: Sequence[int]) -> int | None:
    """Resume from which on moments are coarse: what it went on from was, or became so there."""
    for n, state in enumerate(read):
        if state.coarse and state.step + 1 in resumed:
            return state.step + 1
        if state.coarse and n and not read[n - 1].coarse:
            began = began_between([read[n - 1].step], state.step, resumed)
            if not began.sampled:
                return began.first_bad_step
    return None


def _shares(checkpoint: Checkpoint) -> _Shares | None:
    """Shares over the sampled numbers of one state; None where it holds no moments."""
    if "optimizer.pt" not in checkpoint.files:
        return None
    try:
        saved = read_optimizer(checkpoint.path / "optimizer.pt")
        kept = [p for p in saved.parameters if {"exp_avg", "exp_avg_sq"} <= p.tensors.keys()]
        parts = [_counts(p) for p in kept[:: max(1, -(-len(kept) // MOST_PARAMETERS))]]
    except Refused:
        return None
    sums = {name: sum(float(part[name]) for part in parts) for name in parts[0]} if parts else {}
    if not sums.get("n"):
        return None
    shares = {
        name: round(sums[name] / sums["n"], 6)
        for name in ("second_zero", "impossible", "blank", "nonfinite", "below_eps")
    }
    wide = max(1.0, sums["wide"])
    bounds = [part["over_bound"] for part in parts if part["over_bound"] > 0]
    return _Shares(
        checkpoint.step,
        n=int(sums["n"]),
        over_bound=round(max(bounds), 4) if bounds else None,
        grid=round(sums["grid"] / wide, 6),
        repeated=round(sums["repeated"] / wide, 6),
        **shares,
    )


def _counts(parameter: ParameterState) -> dict[str, float]:
    """Of one parameter: how many of the sampled pairs are what."""
    first, second = (parameter.tensors[name].sample() for name in ("exp_avg", "exp_avg_sq"))
    n = min(len(first), len(second)) if len(first) == len(second) else 0
    m, v = np.abs(first[:n].astype(np.float64)), second[:n].astype(np.float64)
    finite = np.isfinite(m) & np.isfinite(v) & (v >= 0)
    group = parameter.group
    root = np.sqrt(np.where(finite, v, 0.0))
    bound = _bound(parameter)
    ratio = np.zeros(n)
    if bound is not None:
        usable = finite & (root > 0) & (m > TINY)
        ratio[usable] = m[usable] / (bound * root[usable])
    used = parameter.step is not None and parameter.step > FEWEST
    wide = second[:n][second[:n] != 0] if second.dtype == np.float32 else np.empty(0, np.float32)
    wide = (
        wide[np.isfinite(wide)] if parameter.tensors["exp_avg_sq"].dtype == "float32" else wide[:0]
    )
    eps = group.eps if group is not None and group.eps is not None else 0.0
    return {
        "n": n,
        "second_zero": float((finite & (m > TINY) & (v == 0)).sum()),
        "impossible": float((ratio > ROUNDING).sum()),
        "over_bound": float(ratio.max(initial=0.0)),
        "blank": float(n if used and n and not m.any() and not v.any() else 0),
        "nonfinite": float((~finite).sum()),
        "below_eps": float((finite & (v > 0) & (root < eps)).sum()),
        "wide": len(wide),
        "grid": float(((np.ascontiguousarray(wide).view(np.uint32) & 0xFFFF) == 0).sum()),
        "repeated": float(len(wide) - len(np.unique(wide))),
    }


def _bound(parameter: ParameterState) -> float | None:
    """Largest abs(m) / sqrt(v) that any gradients give; None where the averages are others."""
    group = parameter.group
    stored = {parameter.tensors[name].dtype for name in ("exp_avg", "exp_avg_sq")}
    if (
        group is None
        or not group.is_adam
        or group.betas is None
        or not stored <= {"float32", "float64"}
    ):
        return None
    return largest_first_moment(*group.betas)


def largest_first_moment(b1: float, b2: float) -> float | None:
    """Largest abs(m) over sqrt(v) that any gradients give Adam's averages of these weights.

    None where there is none: the first average forgets more slowly than the second.
    """
    if not 0 <= b1 < 1 or not 0 < b2 < 1 or b1 * b1 >= b2:
        return None
    return float((1 - b1) / np.sqrt((1 - b2) * (1 - b1 * b1 / b2)))
