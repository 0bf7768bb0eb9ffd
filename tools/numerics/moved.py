"""Do updates move the parameters, given what these are stored in?"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.flight import ParameterGroup
from firstbad.tools.numbers import percent
from firstbad.tools.numerics.trail import plain_dtype
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

HALF = ("float16", "bfloat16")
FEWEST = 5
"""Recorded updates of a group that are read."""


class MovedShare(Dated):
    """Groups of parameters with a gradient, and the share of their numbers that updates change."""

    n_groups: int
    n_half: int
    """Groups stored with 16 bits."""
    n_no_master: int
    """Of those: the record states that no copy in 32 bits is kept."""
    n_unstated: int
    """Of those: nothing says whether there is one."""
    moved_least: float | None
    """Smallest median over the updates of a group's share that moves, groups without a copy in 32
    bits; None without any."""
    n_updates: int
    """Updates recorded of that group."""
    still_unstated: int
    """Groups of unstated copies of which no number moved in any of at least 20 updates."""
    update_over_weight: float | None
    """Median norm of the group's update over that of its weights; half a unit of bfloat16 is
    0.002 to 0.004 of a number."""


@tool
def check_moved_share(run: Run) -> Measured[MovedShare]:
    """Share of the numbers of each group of parameters that an update changes.

    A number in bfloat16 has 8 bits: an update below 1/512 to 1/256 of it is rounded away. With a
    copy of the weights in 32 bits the small updates add up there, and the share says nothing.

    Cannot tell: groups without a gradient, whose numbers stay for another reason.
    """
    groups: dict[str, list[tuple[int, ParameterGroup]]] = defaultdict(list)
    for flown in run.flight:
        for group in flown.parameters:
            if group.moved_share is not None and group.grad_norm:
                groups[group.name].append((flown.step, group))
    groups = {name: own for name, own in groups.items() if len(own) >= FEWEST}
    if not groups:
        raise NoData(f"no group of parameters with a gradient and its moves in {FEWEST} updates")
    half = {n: own for n, own in groups.items() if plain_dtype(own[-1][1].dtype) in HALF}
    lacking = {n: own for n, own in half.items() if plain_dtype(own[-1][1].master_dtype) in HALF}
    unstated = {n: own for n, own in half.items() if not own[-1][1].master_dtype}
    still = {
        n: own
        for n, own in unstated.items()
        if len(own) >= 20 and not any(g.moved_share for _, g in own)
    }
    median = {n: _median(own) for n, own in {**lacking, **still}.items()}
    least = min(median, key=lambda n: (median[n], n), default=None)
    own = groups[least] if least is not None else []
    relative = [
        g.update_norm / g.weight_norm for _, g in own if g.update_norm is not None and g.weight_norm
    ]
    # Absorbed updates have no onset of their own but the first step with so small a share.
    bad = [step for step, g in own if (g.moved_share or 0.0) < 0.3]
    good = [step for step, g in own if bad and step < bad[0]]
    metrics = MovedShare(
        n_groups=len(groups),
        n_half=len(half),
        n_no_master=len(lacking),
        n_unstated=len(unstated),
        moved_least=None if least is None else round(median[least], 6),
        n_updates=len(own),
        still_unstated=len(still),
        update_over_weight=round(float(np.median(relative)), 9) if relative else None,
        last_good_step=good[-1] if good else None,
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and not good,
    )
    table = Table(
        title="share of numbers that an update changes",
        columns=("parameters", "updates", "median share", "dtype", "copy"),
        rows=tuple(
            (n, len(own), round(_median(own), 6), own[-1][1].dtype, own[-1][1].master_dtype)
            for n, own in sorted(groups.items(), key=lambda item: _median(item[1]))[:30]
        ),
        cut_rows=max(0, len(groups) - 30),
    )
    text = f"{len(half)} of {len(groups)} groups of parameters are stored with 16 bits"
    if least is not None:
        text += (
            f"; of `{least}`, without a copy in 32 bits, an update moves {percent(median[least])}"
        )
    return Measured(metrics, text, tables=(table,), signal="share of numbers that move")


def _median(own: list[tuple[int, ParameterGroup]]) -> float:
    return float(np.median([group.moved_share or 0.0 for _, group in own]))
