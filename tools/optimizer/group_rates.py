"""Learning rates of the parameter groups that a saved optimizer holds."""

from __future__ import annotations

import math
from collections import Counter

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.inert_pickle import Refused
from firstbad.tools.numbers import number
from firstbad.tools.optimizer.between_checkpoints import Began, began_between
from firstbad.tools.readers.weights import sampled_weights
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.saved_state import read_optimizer
from firstbad.tools.segments import resumes

ALIKE = 50.0
"""Factor between groups from which a checkpoint is told apart from earlier ones; rates that fall
with the depth of a layer, or differ between the two matrices of an adapter, stay below."""
MOST_STATES = 20
MOST_TOLD = 4
"""Shapes, and names of one shape, that are told."""

Shape = tuple[int, ...]


class GroupRates(Dated):
    """The highest rate of a group against the usual one."""

    n_states: int
    n_groups: int
    """Most groups in one state."""
    rate_usual: float
    """Middle rate of the groups (the lower of two), or the logged one where that is higher, where
    the factor is largest."""
    rate_highest: float
    factor: float
    """Highest over usual."""
    n_fast: int | None
    """Tensors in the groups with the highest rate, where it is told apart; None elsewhere."""


@tool
def compare_group_rates(run: Run) -> Measured[GroupRates]:
    """Highest learning rate of a parameter group over the usual one, in saved states of Adam.

    Trainers log the rate of one group. Groups of other optimizers, whose rates have another unit,
    are left out. Files are not unpickled.

    Tensors of the fast group are named by their shape, where no other one of the checkpoint has it.

    Cannot tell: whether a rate of its own was meant.
    """
    found: list[tuple[int, list[float]]] = []
    for checkpoint in run.checkpoints[-MOST_STATES:]:
        if "optimizer.pt" not in checkpoint.files:
            continue
        try:
            groups = read_optimizer(checkpoint.path / "optimizer.pt").groups
        except Refused:
            continue
        rates = sorted(g.learning_rate for g in groups if g.is_adam and g.learning_rate)
        if rates and rates[0] > 0 and math.isfinite(rates[-1]):
            found.append((checkpoint.step, rates))
    if not found:
        raise NoData("no saved state of Adam with learning rates above 0")
    spread = {step: rates[-1] / _usual(run, step, rates) for step, rates in found}
    worst, rates = max(found, key=lambda one: spread[one[0]])
    apart = [step for step, factor in spread.items() if factor > ALIKE]
    began = Began(found[-1][0], None)
    if apart:
        alike = [step for step in spread if step not in apart]
        began = began_between(alike, apart[0], resumes(run))
    fast = _of_rate(run, worst, rates[-1]) if apart else None
    metrics = GroupRates(
        n_states=len(found),
        n_groups=max(len(rates) for _, rates in found),
        rate_usual=_usual(run, worst, rates),
        rate_highest=rates[-1],
        factor=round(spread[worst], 4),
        n_fast=None if fast is None else len(fast),
        last_good_step=began.last_good_step,
        first_bad_step=began.first_bad_step,
        from_start=began.from_start,
        sampled=bool(apart) and began.sampled,
    )
    return Measured(
        metrics,
        f"{metrics.n_groups} groups of parameters in {len(found)} saved optimizer states: the "
        f"highest rate is {number(metrics.factor, digits=3)} times the usual one",
        tables=(
            Table(
                title="learning rates of the groups, by checkpoint",
                columns=("step", "rates"),
                rows=tuple(
                    (step, ", ".join(number(r, digits=3) for r in rates[:12]))
                    for step, rates in found
                ),
            ),
        ),
        signal="learning rates of parameter groups",
        quote="" if not fast else _held(fast, _named_shapes(run, worst)),
    )


def _of_rate(run: Run, step: int, rate: float) -> list[Shape]:
    """Shapes of the tensors whose group has this rate."""
    (path,) = (c.path for c in run.checkpoints if c.step == step)
    state = read_optimizer(path / "optimizer.pt")
    return [
        next(iter(p.tensors.values())).shape
        for p in state.parameters
        if p.group is not None and p.group.learning_rate == rate and p.tensors
    ]


def _named_shapes(run: Run, step: int) -> dict[Shape, list[str]]:
    """Names of the stored weights, by shape."""
    (checkpoint,) = (c for c in run.checkpoints if c.step == step)
    named: dict[Shape, list[str]] = {}
    for tensor in sampled_weights(checkpoint):
        named.setdefault(tensor.shape, []).append(tensor.name)
    return named


def _held(shapes: list[Shape], named: dict[Shape, list[str]]) -> str:
    """Which tensors a group holds, as a sentence: by name where the shape leaves one only."""
    told = []
    for shape, count in Counter(shapes).most_common(MOST_TOLD):
        names = named.get(shape, [])
        size = " × ".join(map(str, shape)) or "one number"
        if len(names) == count:
            told.append(f"{', '.join(f'`{name}`' for name in names[:MOST_TOLD])} ({size})")
        else:
            told.append(f"{count} of shape {size}")
    more = len(set(shapes)) - len(told)
    rest = f", and {more} more shapes" if more > 0 else ""
    tensors = "1 tensor" if len(shapes) == 1 else f"{len(shapes)} tensors"
    return f"The group holds {tensors}: {', '.join(told)}{rest}."


def _usual(run: Run, step: int, rates: list[float]) -> float:
    """The rate that the groups are held against."""
    logged = run.signals.get("learning_rate")
    near = [] if logged is None else logged.between(step, step + 1).tolist()
    return float(max([rates[(len(rates) - 1) // 2], *near]))
