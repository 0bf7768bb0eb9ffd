"""Learning rates of the parameter groups that a saved optimizer holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.inert_pickle import Refused
from firstbad.tools.numbers import number
from firstbad.tools.optimizer.between_checkpoints import Began, began_between
from firstbad.tools.readers.weights import sampled_weights
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.saved_state import ParameterGroup, read_optimizer
from firstbad.tools.segments import resumes

ALIKE = 50.0
"""Factor between groups from which a checkpoint is told apart from earlier ones; rates that fall
with the depth of a layer, or differ between the two matrices of an adapter, stay below."""
MOST_STATES = 20
MOST_TOLD = 4
"""Shapes, and names of one shape, that are told."""

Shape = tuple[int, ...]


class GroupRates(Dated):
    """The highest rate of a group against the usual one, and rates that no update can use."""

    n_states: int
    n_groups: int
    """Most groups in one state."""
    unusable_states: int
    """States with a group whose rate is below 0 or not finite, whatever the optimizer. A rate of 0
    is legal: a warm-up begins with it, and a schedule may end there."""
    rate_usual: float | None
    """Middle rate of the groups (the lower of two), or the logged one where that is higher, where
    the factor is largest; None without rates above 0."""
    rate_highest: float | None
    factor: float | None
    """Highest over usual."""
    n_fast: int | None
    """Tensors in the groups with the highest rate, where it is told apart; None elsewhere."""


@tool
def compare_group_rates(run: Run) -> Measured[GroupRates]:
    """Highest learning rate of a parameter group over the usual one, in saved states of Adam.

    Trainers log the rate of one group. Groups of other optimizers, whose rates have another unit,
    are left out. Files are not unpickled. Dated where a rate is below 0 or not finite, or else
    where the factor is large.

    Tensors of the fast group are named by their shape, where no other one of the checkpoint has it.

    Cannot tell: whether a rate of its own was meant.
    """
    found: dict[int, list[float]] = {}
    unusable: dict[int, float] = {}
    for step, groups in _states(run):
        rates = sorted(g.learning_rate for g in groups if g.is_adam and g.learning_rate)
        bad = [g.unusable_rate for g in groups if g.unusable_rate is not None]
        if bad:
            unusable[step] = bad[0]
        if rates or bad:
            found[step] = rates
    if not found:
        raise NoData("no saved state of Adam with learning rates above 0")
    spread = {step: rates[-1] / _usual(run, step, rates) for step, rates in found.items() if rates}
    worst = max(spread, key=lambda step: spread[step]) if spread else None
    highest = found[worst] if worst is not None else []
    apart = list(unusable) or [step for step, factor in spread.items() if factor > ALIKE]
    began = Began(max(found), None)
    if apart:
        began = began_between([s for s in found if s not in apart], apart[0], resumes(run))
    fast, quote = None, ""
    if apart and not unusable and worst is not None:
        fast = _of_rate(run, worst, highest[-1])
        quote = _held(fast, _named_shapes(run, worst)) if fast else ""
    metrics = GroupRates(
        n_states=len(found),
        n_groups=max(len(rates) for rates in found.values()),
        unusable_states=len(unusable),
        rate_usual=None if worst is None else _usual(run, worst, highest),
        rate_highest=None if worst is None else highest[-1],
        factor=None if worst is None else round(spread[worst], 4),
        n_fast=None if fast is None else len(fast),
        last_good_step=began.last_good_step,
        first_bad_step=began.first_bad_step,
        from_start=began.from_start,
        sampled=bool(apart) and began.sampled,
    )
    text = f"{metrics.n_groups} groups of parameters in {len(found)} saved optimizer states"
    if metrics.factor is not None:
        text += f": the highest rate is {number(metrics.factor, digits=3)} times the usual one"
    if unusable:
        step, rate = next(iter(unusable.items()))
        quote = f"At step {step} a group has a rate of {rate:g}."
        text += f"; in {len(unusable)} of them a rate is below 0 or not finite, first {rate:g}"
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title="learning rates of the groups, by checkpoint",
                columns=("step", "rates"),
                rows=tuple(
                    (step, ", ".join(number(r, digits=3) for r in rates[:12]))
                    for step, rates in found.items()
                ),
            ),
        ),
        signal="learning rates of parameter groups",
        quote=quote,
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


def _states(run: Run) -> Iterator[tuple[int, tuple[ParameterGroup, ...]]]:
    """Step and groups of the saved states that can be read, the last ones of a long run."""
    for checkpoint in run.checkpoints[-MOST_STATES:]:
        if "optimizer.pt" not in checkpoint.files:
            continue
        try:
            yield checkpoint.step, read_optimizer(checkpoint.path / "optimizer.pt").groups
        except Refused:
            continue


def _usual(run: Run, step: int, rates: list[float]) -> float:
    """The rate that the groups are held against."""
    logged = run.signals.get("learning_rate")
    near = [] if logged is None else logged.between(step, step + 1).tolist()
    return float(max([rates[(len(rates) - 1) // 2], *near]))
