"""Mixture of experts: do both sides send a token to the same experts, and what if they do not?"""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.probability.sides import pooled, read_sides
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, FloatArray, Run


class Routing(Dated):
    """Sampled tokens by whether trainer and engine chose the same experts."""

    n_tokens: int
    share_differs: float
    """Tokens that went to other experts in any layer."""
    differs_since: float | None
    """... of the captures from the onset on; None without one."""
    difference_apart: float | None
    """Mean abs(trainer - engine), nats, on those."""
    difference_same: float | None
    """... on all others."""
    excess: float | None
    """`difference_apart` over `difference_same` (at least 0.001 nats)."""
    carried_share: float | None
    """Share of the whole difference that tokens with other experts carry."""


@tool
def compare_routing(run: Run) -> Measured[Routing]:
    """Experts chosen by trainer and engine for the same tokens, and the log-prob difference by it.

    Choices that differ without a difference in log-probs do no harm.

    Cannot tell: which layer, since only a digest over all layers is recorded.
    """
    found: list[tuple[int, BoolArray, FloatArray]] = []
    for sides, use, delta in pooled(
        list(read_sides(run, "trainer", "engine")), "trainer", "engine"
    ):
        arrays = run.captures.at(sides.step).arrays
        ours, theirs = arrays.get("expert_trainer"), arrays.get("expert_engine")
        if ours is not None and theirs is not None and ours.shape == theirs.shape == use.shape:
            found.append((sides.step, np.asarray((ours != theirs)[use]), np.abs(delta[use])))
    if not found:
        raise NoData("no captures with the experts of both sides and their log-probs")
    apart = np.concatenate([a for _, a, _ in found])
    gap = np.concatenate([g for _, _, g in found])
    off = _mean(gap[apart]), _mean(gap[~apart])
    harm = [(a.any() and _mean(g[a]) or 0.0) > 0.1 for _, a, g in found]
    first = next((i for i, h in enumerate(harm) if h), None)
    metrics = Routing(
        n_tokens=len(gap),
        share_differs=_r(apart.mean()),
        differs_since=None
        if first is None
        else _r(np.concatenate([a for _, a, _ in found[first:]]).mean()),
        difference_apart=off[0],
        difference_same=off[1],
        excess=None if None in off else _r((off[0] or 0.0) / max(off[1] or 0.0, 0.001)),
        carried_share=_r(gap[apart].sum() / gap.sum()) if gap.sum() > 0 else None,
        first_bad_step=None if first is None else found[first][0],
        last_good_step=None if not first else found[first - 1][0],
        from_start=first == 0,
        sampled=True,
    )
    rows = tuple((s, len(g), _r(a.mean()), _mean(g[a]), _mean(g[~a])) for s, a, g in found[:60])
    table = Table(
        title="experts of trainer and engine",
        columns=("step", "tokens", "share that differs", "difference there", "elsewhere"),
        rows=rows,
        cut_rows=max(0, len(found) - 60),
    )
    return Measured(
        metrics,
        f"{percent(metrics.share_differs)} of {number(len(gap))} tokens went to other experts in "
        f"the engine; log-probs differ by {number(off[0], digits=3)} nats there and by "
        f"{number(off[1], digits=3)} elsewhere",
        tables=(table,),
        window=(found[0][0], found[-1][0]),
        signal="experts of trainer and engine",
    )


def _mean(values: FloatArray) -> float | None:
    return _r(values.mean()) if len(values) else None


def _r(value: float | np.floating) -> float:
    return round(float(value), 6)
