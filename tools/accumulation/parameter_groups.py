"""Does a gradient reach every group of parameters, and does each one move?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from firstbad.tools.accumulation.ledger import Span, span_of
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

LARGEST = 1e9
"""Norm that larger ones count as."""
FEWEST = 5
"""Steps in which others move that a group must stand."""
_ADAPTER = re.compile(r"lora|adapter|prompt_encoder|ia3", re.I)
_FIRST_ZERO = re.compile(r"lora_(A|embedding_A)")
"""Has no gradient while its partner is still 0, as it is at first."""
_SPARSE = re.compile(r"embed|wte|wpe|lm_head|experts?\.\d|router")
"""Rows of tokens that never occur, and experts without a token, have no gradient."""
_LOW = ("bfloat16", "bf16", "float16", "fp16", "half")
_DECLARES = re.compile(r"freez|frozen|(^|\.|_)(peft|lora)|^adapter\.|trainable", re.I)


class ParameterGroups(Dated):
    """Groups of parameters that stand still while others train."""

    n_steps: int
    """Captured steps with figures of the groups, in which one of them moves."""
    n_groups: int
    n_probes: int
    """Backward passes that a probe recorded."""
    still_groups: int
    """Groups that stand in the last steps measured."""
    stopped_groups: int
    """... and moved before."""
    unmoved_groups: int
    """... and never moved although they have a gradient: no optimizer holds them."""
    still_share: float | None
    """Their squared weight norm over that of all groups."""
    n_probed: int
    """Trainable parameters in them, the most of one."""
    probe_zero: int
    """Trainable parameters without a gradient in a probe, while others have one."""
    freezing_declared: bool
    """A setting or a name speaks of adapters or of frozen parts."""


@dataclass(frozen=True)
class _Group:
    """One group over the N steps in which something moves."""

    steps: tuple[int, ...]
    still: tuple[bool, ...]
    no_gradient: bool
    weight: float

    @property
    def stands(self) -> bool:
        return len(self.still) >= FEWEST and all(self.still[-FEWEST:])

    @property
    def stopped(self) -> bool:
        return self.stands and not all(self.still)


@tool
def check_parameter_groups(run: Run) -> Measured[ParameterGroups]:
    """Gradient and update norms of named groups of parameters, step by step.

    A group stands where its gradient or its update is exactly 0 while another group moves; steps in
    which nothing moves (a learning rate of 0) are left out, and so are updates of 0 in 16 bits,
    which rounding alone can make. Of a probe's single backward pass: trainable parameters with a
    gradient of exactly 0, without those that rightly have none (the first factor of a new LoRA,
    experts without a token, rows of unused tokens).

    Cannot tell: a part that is meant to be frozen from one that is not, where no setting says so.
    """
    groups = _groups(run)
    zero, n_probed, adapters = _probed(run)
    n_probes = len(run.flight.probes_of("gradients"))
    if not groups and not n_probes:
        raise NoData("no figures of parameter groups and no probe `gradients` were recorded")
    still = {name: g for name, g in groups.items() if g.stands}
    stopped = {name: g for name, g in still.items() if g.stopped}
    moving = [name for name in groups if name not in still]
    adapters |= bool(still) and any(_ADAPTER.search(n) for n in moving)
    adapters &= not any(_ADAPTER.search(n) for n in (*still, *zero))
    weight = sum(g.weight for g in groups.values())
    bracket = Span()
    if still:
        dated = min((stopped or still).values(), key=lambda g: _since(g).first_bad_step or 0)
        bracket = _since(dated)
    elif zero:
        bracket = Span(first_bad_step=min(zero.values()), from_start=True)
    metrics = ParameterGroups(
        n_steps=max((len(g.steps) for g in groups.values()), default=0),
        n_groups=len(groups),
        n_probes=n_probes,
        still_groups=len(still),
        stopped_groups=len(stopped),
        unmoved_groups=sum(not g.stopped and not g.no_gradient for g in still.values()),
        still_share=round(sum(g.weight for g in still.values()) / weight, 6) if weight else None,
        n_probed=n_probed,
        probe_zero=len(zero),
        freezing_declared=adapters
        or any(_DECLARES.search(k) and v for k, v in run.config.values.items()),
        **asdict(bracket),
    )
    names = _names([*stopped, *(n for n in still if n not in stopped)] or zero)
    return Measured(
        metrics,
        f"{metrics.still_groups} of {metrics.n_groups} groups of parameters stand still while "
        f"others train, {metrics.stopped_groups} of them after having trained"
        + (f", {percent(metrics.still_share)} by squared norm" if still and weight else "")
        + (f"; {len(zero)} trainable ones without a gradient in a probe" if n_probes else ""),
        signal="norms of parameter groups",
        quote=f"By name: {names}." if names else "",
    )


def _groups(run: Run) -> dict[str, _Group]:
    """Each group over the steps in which at least one group moves."""
    seen: dict[str, list[tuple[int, bool, bool, float]]] = {}
    for step in run.flight:
        moves = any((g.update_norm or 0.0) > 0 for g in step.parameters)
        known = [g for g in step.parameters if g.update_norm is not None or g.grad_norm is not None]
        if not moves or len(known) < 2:
            continue
        for g in known:
            none = g.grad_norm == 0
            low = (g.master_dtype or g.dtype or "").removeprefix("torch.") in _LOW
            stands = none or (g.update_norm == 0 and not low)
            seen.setdefault(g.name, []).append((step.step, stands, none, g.weight_norm or 0.0))
    return {
        name: _Group(
            tuple(step for step, *_ in rows),
            tuple(stands for _, stands, *_ in rows),
            rows[-1][2],
            min(abs(float(np.median([w for *_, w in rows]))), LARGEST) ** 2,
        )
        for name, rows in sorted(seen.items())
        if not _SPARSE.search(name)
    }


def _since(group: _Group) -> Span:
    return span_of(group.steps, np.array(group.still))


def _probed(run: Run) -> tuple[dict[str, int], int, bool]:
    """Trainable parameters without a gradient and where, of how many, and if others are frozen."""
    zero: dict[str, int] = {}
    most, adapters = 0, False
    for probe in run.flight.probes_of("gradients"):
        norms: dict[str, float] = {}
        for row in probe.rows("parameters"):
            norm = row.get("grad_norm")
            adapters |= row.get("trainable") is False
            if row.get("trainable") is True and _is_number(norm):
                norms[str(row.get("name", ""))[:200]] = float(norm)  # type: ignore[arg-type]
        most = max(most, len(norms))
        if not any(norms.values()):
            continue  # nothing has a gradient: an empty batch, or the whole loss is detached
        for name in _without(norms):
            zero.setdefault(name, probe.step)
    return zero, most, adapters


def _without(norms: Mapping[str, float]) -> Iterable[str]:
    return (
        name
        for name, norm in norms.items()
        if norm == 0 and not _SPARSE.search(name) and not _FIRST_ZERO.search(name)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _names(names: Iterable[str]) -> str:
    shown = [f"`{name}`" for name in names]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
