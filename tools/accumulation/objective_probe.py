"""The loss function alone, on input that was worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from firstbad.tools.accumulation.ledger import span_of
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.flight import Probe
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

LEAST, SPREADS = 0.01, 10
"""A case is off by this share of its size, and by so many spreads of the probe."""


class ObjectiveProbe(Dated):
    """Gradients of the loss with respect to the log-prob, against those expected."""

    n_probes: int
    n_cases: int
    """Of the probe with most wrong ones."""
    n_wrong: int
    largest_error: float
    """abs(measured - expected) over the larger of abs(expected) and abs(advantage x ratio), or over
    the largest expected one of a case without advantage."""
    table_disagrees: int
    """Cases whose expected value is not that of the clipped objective (see below): the stated
    objective is another one, or the probe expects the wrong thing."""
    n_sign: int
    """Wrong ones with the negative of what is expected, among cases with an advantage."""
    n_not_cut: int
    """... with a gradient where clipping must cut it."""
    n_cut: int
    """... without one where it must flow, beside others that have one."""
    n_term_wrong: int
    """Wrong ones without an advantage: the KL term or another one."""
    n_term_sign: int
    """... with the negative of what is expected."""
    all_zero: bool
    """No case has a gradient: the term is detached."""
    ratio_constant: float | None
    """Measured over expected, where it is one number other than 1 in every case with an advantage:
    a weight that is not passed, or a factor."""


@dataclass(frozen=True)
class _Case:
    name: str
    advantage: float
    ratio: float
    expected: float
    measured: float

    @property
    def size(self) -> float:
        return max(abs(self.expected), abs(self.advantage * self.ratio))


@tool
def check_objective_probe(run: Run) -> Measured[ObjectiveProbe]:
    """Measured against expected gradients of the loss function on hand-made input.

    With A > 0 the gradient is cut above 1 + eps and flows below 1 - eps; with A < 0 it is cut below
    1 - eps and flows above 1 + eps, and where it flows it is -A x ratio. Cases with no advantage
    show the KL term. What is expected is taken as the probe states it.

    Cannot tell: whether training calls the loss function with the right input.
    """
    judged = [
        (p.step, cases, [c for c in cases if _off(c, cases, p)])
        for p in run.flight.probes_of("objective")
        if (cases := _cases(p))
    ]
    if not judged:
        raise NoData("no probe `objective` was recorded")
    _, cases, off = max(judged, key=lambda j: (len(j[2]), _error(j[1])))
    paid = [c for c in cases if c.advantage]
    off_paid = [c for c in off if c.advantage]
    still = [c for c in off_paid if abs(c.measured) < LEAST * c.size]
    all_zero = bool(off_paid) and all(abs(c.measured) < LEAST * c.size for c in paid)
    metrics = ObjectiveProbe(
        n_probes=len(judged),
        n_cases=len(cases),
        n_wrong=len(off),
        largest_error=round(min(_error(cases), 1e6), 9),
        table_disagrees=_table_disagrees(run, cases),
        n_sign=sum(bool(c.expected) and _near(c.measured, -c.expected, c) for c in off_paid),
        n_not_cut=sum(not c.expected for c in off_paid),
        n_cut=0 if all_zero else len(still),
        n_term_wrong=len(off) - len(off_paid),
        n_term_sign=sum(not c.advantage and _near(c.measured, -c.expected, c) for c in off),
        all_zero=all_zero,
        ratio_constant=_constant(paid) if off_paid else None,
        **asdict(span_of([s for s, *_ in judged], np.array([bool(w) for *_, w in judged]))),
    )
    names = ", ".join(f"`{c.name}`" for c in off[:4]) + (" and more" if len(off) > 4 else "")
    return Measured(
        metrics,
        f"{metrics.n_wrong} of {len(cases)} gradients of the loss on hand-made input are not those "
        "expected" + (f" ({names})" if off else ""),
        tables=(_shown(cases),),
        signal="gradient of the loss on hand-made input",
        quote=f"Wrong are {names}." if off else "",
    )


def _cases(probe: Probe) -> list[_Case]:
    return [c for row in probe.rows("cases") if (c := _case(row)) is not None]


def _case(row: Mapping[str, object]) -> _Case | None:
    """A case whose numbers are all there; one that is not finite counts as unlike anything."""
    values = []
    for name in ("advantage", "ratio", "expected", "measured"):
        value = row.get(name)
        if isinstance(value, str) and name == "measured":
            value = 1e6
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        values.append(float(value) if math.isfinite(value) else 1e6)
    return _Case(str(row.get("name", ""))[:40], *values)


def _scale(case: _Case, cases: list[_Case]) -> float:
    return case.size or max((c.size for c in cases), default=1.0) or 1.0


def _off(case: _Case, cases: list[_Case], probe: Probe) -> bool:
    error = abs(case.measured - case.expected)
    floor = max(LEAST, SPREADS * (probe.number("spread") or 0.0))
    return error > floor * _scale(case, cases)


def _error(cases: list[_Case]) -> float:
    return max(abs(c.measured - c.expected) / _scale(c, cases) for c in cases)


def _near(value: float, other: float, case: _Case) -> bool:
    return abs(value - other) <= LEAST * max(case.size, 1e-12)


def _constant(cases: list[_Case]) -> float | None:
    """Measured over expected, where all cases have the same."""
    cut = [c for c in cases if not c.expected]
    flow = [c.measured / c.expected for c in cases if c.expected]
    if not flow or any(not _near(c.measured, 0.0, c) for c in cut):
        return None
    first = float(np.median(flow))
    same = all(abs(f - first) <= LEAST * abs(first) for f in flow)
    return round(first, 6) if same and abs(first) > LEAST and abs(first - 1) > LEAST else None


def _table_disagrees(run: Run, cases: list[_Case]) -> int:
    """Cases that the probe expects otherwise than the clipped objective with the settings."""
    low = run.config.number("epsilon")
    if low is None:
        return 0
    high = run.config.number("epsilon_high") or low
    count = 0
    for case in cases:
        if not case.advantage:
            continue
        cut = case.ratio > 1 + high if case.advantage > 0 else case.ratio < 1 - low
        count += not _near(case.expected, 0.0 if cut else -case.advantage * case.ratio, case)
    return count


def _shown(cases: list[_Case]) -> Table:
    rows = tuple((c.name, c.advantage, c.ratio, c.expected, c.measured) for c in cases[:20])
    return Table(
        title="gradients of the loss with respect to the log-prob",
        columns=("case", "advantage", "ratio", "expected", "measured"),
        rows=rows,
        cut_rows=max(0, len(cases) - 20),
    )
