"""Limits on ratios, told apart by their place in the computation, and how often they hit."""

from __future__ import annotations

from collections import defaultdict
from math import log

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.flight import Clamp
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

LEGAL = ("objective", "importance_weight", "dual_clip")
"""Places at which a limit is a part of the algorithm."""


class Clamps(Dated):
    """Limits recorded, by place."""

    n_clamps: int
    n_numerical: int
    """Of those: on the log-ratio before exp, or on the ratio after it."""
    hit_share: float
    """Largest share of hits of a numerical clamp, over the steps from its first hits on."""
    limit_log_ratio: float | None
    """That clamp: the nearer of its sides, as a log-ratio; None without a limit."""
    after_exp: bool
    """That clamp sits behind exp: it leaves Inf in the graph."""
    n_after_exp: int
    """Numerical clamps behind exp, whether they hit or not."""
    hit_share_legal: float
    """Largest share of hits of the others: clip, importance cap, dual clip."""


@tool
def check_clamps(run: Run) -> Measured[Clamps]:
    """Hit rates of recorded limits: numerical clamps, which should never hit, and all others.

    A limit is what its place makes it: on the log-ratio before exp it guards against overflow, in
    the objective it is the clip, on the importance weight a cap. The number says nothing.

    Cannot tell: limits that were not recorded.
    """
    found: dict[tuple[str, str], list[tuple[int, Clamp]]] = defaultdict(list)
    for flown in run.flight:
        for clamp in flown.clamps:
            if clamp.n and clamp.n_hit is not None:
                found[clamp.place, clamp.name].append((flown.step, clamp))
    if not found:
        raise NoData("no recorded clamp with its hits")
    numerical = {k: own for k, own in found.items() if k[0] in ("log_ratio", "ratio")}
    legal = [own for (place, _), own in found.items() if place in LEGAL]
    worst = max(numerical, key=lambda k: _share(numerical[k]), default=None)
    own = numerical[worst] if worst is not None else []
    hits = [step for step, c in own if c.n and (c.n_hit or 0) > 0.01 * c.n]
    good = [step for step, _ in own if hits and step < hits[0]]
    limit = _limit(own[-1][1]) if own else None
    behind = sorted(name for place, name in numerical if place == "ratio")
    metrics = Clamps(
        n_clamps=len(found),
        n_numerical=len(numerical),
        hit_share=round(_share(own), 6),
        limit_log_ratio=None if limit is None else round(limit, 6),
        after_exp=worst is not None and worst[0] == "ratio",
        n_after_exp=len(behind),
        hit_share_legal=round(max(map(_share, legal), default=0.0), 6),
        last_good_step=good[-1] if good else None,
        first_bad_step=hits[0] if hits else None,
        from_start=bool(hits) and not good,
    )
    table = Table(
        title="limits by place",
        columns=("place", "name", "low", "high", "share of hits"),
        rows=tuple(
            (place, name, own[-1][1].low, own[-1][1].high, percent(_share(own)))
            for (place, name), own in sorted(found.items())[:30]
        ),
        cut_rows=max(0, len(found) - 30),
    )
    text = f"{len(found)} recorded limits, none of them a numerical clamp"
    if worst is not None:
        text = (
            f"the numerical clamp `{worst[1]}` (log-ratio within {number(limit)}) hits "
            f"{percent(metrics.hit_share)} of the tokens"
        )
    return Measured(metrics, text, tables=(table,), signal="hits of the numerical clamp")


def _share(own: list[tuple[int, Clamp]]) -> float:
    """Hits over tokens, from the first step with hits on: earlier ones would hide them."""
    since = next((i for i, (_, c) in enumerate(own) if c.n_hit), None)
    if since is None:
        return 0.0
    return sum(c.n_hit or 0 for _, c in own[since:]) / sum(c.n or 0 for _, c in own[since:])


def _limit(clamp: Clamp) -> float | None:
    """The nearer side of a clamp as a log-ratio."""
    sides = [v for v in (clamp.low, clamp.high) if v is not None]
    if clamp.place == "ratio":
        sides = [log(v) for v in sides if v > 0]
    return min(map(abs, sides), default=None)
