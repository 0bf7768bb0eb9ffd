"""The ledger of weight deliveries: did the engine get, and serve, what the trainer sent?"""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.flight import Sync
from firstbad.tools.numbers import number
from firstbad.tools.probability.sides import Sides, pooled, read_sides
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

SHOWN = 40


class Deliveries(Dated):
    """Deliveries by what is wrong with them; the onset is that of the last stretch of bad ones."""

    n_deliveries: int
    n_bad: int
    """With any of the faults below."""
    n_version_behind: int
    """The engine serves an older version than was sent."""
    n_digest_differs: int
    """A tensor that both sides have differs."""
    n_digest_compared: int
    n_tensor_missing: int
    """The engine lacks a tensor that the trainer has (a tied one that was forgotten)."""
    n_short: int
    """Fewer tensors sent than the model has."""
    n_adapter_unnamed: int
    """An adapter was sent, and generation requests name another one or none."""
    n_cache_kept: int
    """Cached keys and values of older weights were not dropped."""
    all_bad: bool
    """Every delivery has a fault: so it looks as well where the books are kept in another way, such
    as digests of an engine that stores another dtype, or no cache that could be cleared."""
    n_tokens_since: int
    """Captured tokens under bad deliveries, of rows that claim the trainer's own weights."""
    difference_since: float | None
    """Mean abs(trainer - engine) on them, nats: what the bad deliveries do."""
    moved_since: float | None
    """Mean abs(trainer - reference) on them: weights that have not moved need no delivery."""
    last_delivery_step: int
    overdue_steps: int
    """Steps of the run after the last delivery, beyond the largest gap between two of them."""


@tool
def check_deliveries(run: Run) -> Measured[Deliveries]:
    """Weight deliveries that did not arrive whole: version, digests, tensors, adapter, cache.

    Cannot tell: what the engine did with the weights afterwards, such as a reload of the checkpoint
    on waking: that shows in `compare_logprobs`.
    """
    syncs = sorted(run.flight.syncs, key=lambda s: s.step)
    if not syncs:
        raise NoData("no ledger of weight deliveries (syncs.jsonl)")
    faults = [_faults(s) for s in syncs]
    bad = [bool(f) for f in faults]
    count = {kind: sum(kind in f for f in faults) for kind in CALLED}
    compared = [any(t.trainer and t.engine for t in s.tensors) for s in syncs]
    end = max([syncs[-1].step, *run.signals.steps.tolist()])
    gaps = [b.step - a.step for a, b in zip(syncs, syncs[1:], strict=False)]
    first = next((i for i in range(len(bad)) if bad[i]), None)
    sides = list(read_sides(run, "trainer", "engine")) if any(bad) else []
    under = [s for s in sides if _is_under(s.step, syncs, bad)]
    gap, moved = (_mean(under, other) for other in ("engine", "ref"))
    metrics = Deliveries(
        n_deliveries=len(syncs),
        n_bad=sum(bad),
        n_version_behind=count["version"],
        n_digest_differs=count["digest"],
        n_digest_compared=sum(compared),
        n_tensor_missing=count["missing"],
        n_short=count["short"],
        n_adapter_unnamed=count["adapter"],
        n_cache_kept=count["cache"],
        all_bad=all(bad),
        n_tokens_since=gap[0],
        difference_since=gap[1],
        moved_since=moved[1],
        last_delivery_step=syncs[-1].step,
        overdue_steps=max(0, end - 1 - syncs[-1].step - max(gaps, default=1)),
        first_bad_step=None if first is None else syncs[first].step + 1,
        last_good_step=None if not first else syncs[first].step,
        last_bad_step=_ended(syncs, bad),
        from_start=first == 0 or (first is not None and not any(_tells(s) for s in syncs[:first])),
    )
    rows: list[tuple[Scalar, ...]] = [
        (s.step, s.version, s.engine_version, "; ".join(CALLED[k] for k in f), _named(s))
        for s, f in zip(syncs, faults, strict=True)
        if f
    ]
    table = Table(
        title="deliveries that did not arrive whole",
        columns=("after step", "version sent", "version served", "fault", "tensors"),
        rows=tuple(rows[:SHOWN]),
        cut_rows=max(0, len(rows) - SHOWN),
    )
    kinds = ", ".join(f"{CALLED[k]}: {n}" for k, n in count.items() if n)
    return Measured(
        metrics,
        f"{number(len(syncs))} weight deliveries, {number(sum(bad))} of them not whole"
        + (f" ({kinds})" if kinds else ""),
        tables=(table,) if rows else (),
        window=(syncs[0].step, syncs[-1].step),
        signal="ledger of weight deliveries",
    )


CALLED = {
    "version": "engine serves an older version",
    "digest": "digests differ",
    "missing": "tensor missing in the engine",
    "short": "fewer tensors sent than the model has",
    "adapter": "requests do not name the adapter that was sent",
    "cache": "cache of older weights kept",
}


def _faults(s: Sync) -> list[str]:
    """What is wrong with a delivery; what was not recorded is not wrong."""
    pairs = [t for t in s.tensors if t.trainer is not None]
    found = {
        "version": None not in (s.version, s.engine_version)
        and (s.engine_version or 0) < (s.version or 0),
        "digest": any(t.engine is not None and t.engine != t.trainer for t in pairs),
        "missing": any(t.engine is None for t in pairs),
        "short": s.n_sent is not None and s.n_expected is not None and s.n_sent < s.n_expected,
        "adapter": s.adapter is not None and s.engine_adapter != s.adapter,
        "cache": s.cache_cleared is False,
    }
    return [kind for kind, held in found.items() if held]


def _tells(s: Sync) -> bool:
    """Whether a delivery was recorded with anything that could show a fault."""
    return (
        bool(s.tensors) or s.cache_cleared is not None or None not in (s.version, s.engine_version)
    )


def _ended(syncs: list[Sync], bad: list[bool]) -> int | None:
    """The last step under a bad delivery, where whole ones followed."""
    if not any(bad) or bad[-1]:
        return None
    last = len(bad) - 1 - bad[::-1].index(True)
    return syncs[last + 1].step


def _is_under(step: int, syncs: list[Sync], bad: list[bool]) -> bool:
    """Whether the last delivery before a step was bad."""
    before = [b for s, b in zip(syncs, bad, strict=True) if s.step < step]
    return bool(before) and before[-1]


def _mean(sides: list[Sides], other: str) -> tuple[int, float | None]:
    """Tokens, and their mean abs(trainer - other)."""
    gaps = [np.abs(delta[use]) for _, use, delta in pooled(sides, "trainer", other)]
    values = np.concatenate(gaps) if gaps else np.empty(0)
    return len(values), round(float(values.mean()), 6) if len(values) else None


def _named(s: Sync) -> str:
    """Tensors that differ or are missing, a few of them."""
    found = [t.name for t in s.tensors if t.trainer is not None and t.trainer != t.engine]
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
