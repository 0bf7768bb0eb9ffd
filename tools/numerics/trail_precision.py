"""Dtypes of the numeric trail and of captured log-probs: what is computed with 16 bits?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.flight import FlightStep
from firstbad.tools.numerics.trail import KL, LOG_SOFTMAX, PLACES, place_of, plain_dtype
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

HALF = ("float16", "bfloat16")
OWN = ("logp_new", "logp_old", "logp_ref")
"""Captured log-probs that the trainer computes itself."""


class TrailPrecision(Dated):
    """Tensors after the logits that are kept in 16 bits."""

    n_steps: int
    n_tensors: int
    """Recorded tensors from log-softmax to KL, and captured log-probs, with a dtype."""
    n_half: int
    """Of those: float16 or bfloat16."""
    first_half_place: int | None
    """Place of the first of them, as in `read_trail`."""


@tool
def check_trail_precision(run: Run) -> Measured[TrailPrecision]:
    """Dtypes in which log-softmax, log-probs, their difference, exp and KL are computed, as said.

    Logits may have 16 bits. What is made of them must not: bfloat16 keeps 8 bits, so log-probs
    between 1 and 2 lie 0.0078 apart, and differences below that become 0 or leap.

    Cannot tell: what a kernel computes in before it returns another dtype.
    """
    rows: Counter[tuple[int, str, str]] = Counter()
    first: dict[str, int] = {}
    steps = 0
    half: list[int] = []
    for flown in run.flight:
        known = list(_dtypes(flown))
        steps += bool(known)
        for place, name, dtype in known:
            rows[place, name, dtype] += 1
            if dtype in HALF:
                first.setdefault(name, flown.step)
                half.append(place)
    if not rows:
        raise NoData("no recorded dtypes of log-softmax, log-probs or their differences")
    bad = min(first.values(), default=None)
    good = [f.step for f in run.flight if any(_dtypes(f)) and (bad is None or f.step < bad)]
    metrics = TrailPrecision(
        n_steps=steps,
        n_tensors=rows.total(),
        n_half=len(half),
        first_half_place=min(half, default=None),
        last_good_step=good[-1] if good and bad is not None else None,
        first_bad_step=bad,
        from_start=bad is not None and not good,
        sampled=True,
    )
    table = Table(
        title="dtypes in the order of computation",
        columns=("tensor", "place", "dtype", "steps"),
        rows=tuple((name, PLACES[at], dtype, n) for (at, name, dtype), n in sorted(rows.items())),
    )
    told = f"{len(half)} of {rows.total()} recorded tensors from log-softmax to KL have 16 bits"
    return Measured(metrics, told, tables=(table,), signal="dtypes of the trail")


def _dtypes(flown: FlightStep) -> Iterator[tuple[int, str, str]]:
    """Place, name and dtype of each tensor of a step that must have 32 bits."""
    for t in flown.trail:
        if LOG_SOFTMAX <= place_of(t.place) <= KL and plain_dtype(t.dtype):
            yield place_of(t.place), t.name, plain_dtype(t.dtype)
    for name in OWN:
        if dtype := plain_dtype(flown.compute_dtypes.get(name, "")):
            yield place_of("logp"), name, dtype
