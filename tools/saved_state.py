"""Saved states of optimizer, schedule and loss scaler (`optimizer.pt`, ...) as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from firstbad.tools.inert_pickle import Refused
from firstbad.tools.readers.torch_file import StoredTensor, read_torch_file

_LARGEST = 2**63


@dataclass(frozen=True)
class ParameterState:
    """What an optimizer keeps of one parameter."""

    index: int | str
    """Its number in the order of the groups, or its name."""
    step: int | None
    """Updates that were counted; None where there is no such count."""
    tensors: Mapping[str, StoredTensor]
    """`exp_avg`, `exp_avg_sq`, `momentum_buffer`, ... by name; nothing of them is read yet."""
    group: ParameterGroup | None


@dataclass(frozen=True)
class ParameterGroup:
    """Settings that some parameters share, as they stand for the step after the checkpoint."""

    learning_rate: float | None
    """None where there is none, or none that an update can use."""
    unusable_rate: float | None
    """A rate that is below 0, not finite, or beyond any use, where that is what it holds."""
    betas: tuple[float, float] | None
    eps: float | None
    weight_decay: float | None
    is_adam: bool
    """The settings are those of torch's own Adam and AdamW, whose moments are plain averages."""


@dataclass(frozen=True)
class SavedOptimizer:
    """The whole of an optimizer's state."""

    parameters: tuple[ParameterState, ...]
    groups: tuple[ParameterGroup, ...]

    @property
    def step_counts(self) -> tuple[int, ...]:
        """Updates counted for each parameter that counts them, in their order."""
        return tuple(p.step for p in self.parameters if p.step is not None)


@dataclass(frozen=True)
class SavedSchedule:
    """Where a schedule of the learning rate stands."""

    last_epoch: int | None
    """Updates that it counts; launchers of several processes may count one for each."""
    step_count: int | None
    base_rates: tuple[float, ...]
    """Peak rate of each parameter group."""
    last_rates: tuple[float, ...]
    """Rate of each group for the next step."""


@dataclass(frozen=True)
class SavedScaler:
    """A loss scaler as torch's `GradScaler` saves it."""

    scale: float
    """What the loss is multiplied with before its backward pass; 0 where halving has used it up."""
    backoff: float
    """Factor on the scale where a gradient is not finite, and the update is skipped."""
    unskipped: int | None
    """Updates in a row that were not skipped, since the scale last changed."""

    @property
    def skipped_least(self) -> int:
        """Updates that were skipped at least, if it began at torch's own 65536."""
        return falls(INITIAL_SCALE, self.scale, self.backoff)


INITIAL_SCALE = 65536.0
"""Where torch's scaler begins, and so accelerate's."""
_UNDERFLOW = 2.0**-150
"""Rounds to 0 in float32, in which torch holds the scale."""
_SLOWEST_BACKOFF = 0.999
"""A factor nearer to 1 is none: falls could not be counted by it."""


def falls(before: float, after: float, backoff: float) -> int:
    """How often a scale fell from one value to another one at least, growth not counted.

    A scale of 0 falls no further, however many updates are skipped.
    """
    fell = math.log(before or _UNDERFLOW) - math.log(after or _UNDERFLOW)
    return max(0, round(fell / -math.log(backoff)))


def read_optimizer(path: Path) -> SavedOptimizer:
    """The state in a file that torch saved.

    Raises:
        Refused: no such file, or no optimizer state; one line says what.
    """
    try:
        about = path.stat()
    except OSError:
        raise Refused("it cannot be opened") from None
    return _optimizer(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _optimizer(path: Path, changed_ns: int, size: int) -> SavedOptimizer:
    """The state as it stood at that time: several tools read the same file in a row."""
    found = read_torch_file(path)
    states = found.get("state") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(states, dict):
        raise Refused("it holds no optimizer state")
    listed = found.get("param_groups")
    groups: list[ParameterGroup] = []
    group_of: dict[object, ParameterGroup] = {}
    for settings in listed if isinstance(listed, list) else ():
        if isinstance(settings, dict):
            groups.append(_group(settings))
            params = settings.get("params")
            names = params if isinstance(params, list) else ()
            group_of |= {i: groups[-1] for i in names if isinstance(i, int | str)}
    parameters = (
        _parameter(index, kept, group_of.get(index))
        for index, kept in states.items()
        if isinstance(kept, dict)
    )
    return SavedOptimizer(tuple(parameters), tuple(groups))


def read_scheduler(path: Path) -> SavedSchedule:
    """The schedule in a file that torch saved.

    Raises:
        Refused: no such file, or no schedule; one line says what.
    """
    found = read_torch_file(path)
    if not isinstance(found, dict) or "last_epoch" not in found:
        raise Refused("it holds no schedule")
    return SavedSchedule(
        _whole(found["last_epoch"]),
        _whole(found.get("_step_count")),
        _numbers(found.get("base_lrs")),
        _numbers(found.get("_last_lr")),
    )


def read_scaler(path: Path) -> SavedScaler:
    """The loss scaler in a file that torch saved.

    Raises:
        Refused: no such file, or no scaler that is in use; one line says what.
    """
    found = read_torch_file(path)
    scale = _number(found.get("scale")) if isinstance(found, dict) else None
    if not isinstance(found, dict) or scale is None or scale < 0:
        raise Refused("it holds no loss scale")
    backoff = _number(found.get("backoff_factor"))
    if backoff is None or not 0 < backoff <= _SLOWEST_BACKOFF:
        backoff = 0.5
    return SavedScaler(scale, backoff, _whole(found.get("_growth_tracker")))


def _parameter(
    index: int | str, kept: Mapping[object, object], group: ParameterGroup | None
) -> ParameterState:
    tensors = {
        name: value
        for name, value in kept.items()
        if isinstance(name, str) and isinstance(value, StoredTensor)
    }
    counted = tensors.pop("step", None)
    step = kept.get("step") if counted is None else counted
    return ParameterState(index, _whole(step), tensors, group)


def _group(settings: Mapping[object, object]) -> ParameterGroup:
    found = _numbers(settings.get("betas"))
    betas = (found[0], found[1]) if len(found) == 2 else None
    rate = _plain(settings.get("lr"))
    empty = settings.get("params") == []  # trains nothing, whatever its rate says
    peak = _number(settings.get("initial_lr")) or 0.0
    rounding = max(1e-12, 1e-6 * abs(peak))  # where a schedule that subtracts ends at 0
    usable = rate is None or empty or -rounding <= rate < _LARGEST  # NaN is neither
    return ParameterGroup(
        learning_rate=max(rate, 0.0) if rate is not None and usable else None,
        unusable_rate=None if usable else rate,
        betas=betas,
        eps=_number(settings.get("eps")),
        weight_decay=_number(settings.get("weight_decay")),
        is_adam=betas is not None and "amsgrad" in settings,
    )


def _number(value: object) -> float | None:
    """A finite number, also one that is stored as a tensor."""
    number = _plain(value)
    return number if number is not None and abs(number) < _LARGEST else None  # NaN is not below it


def _plain(value: object) -> float | None:
    """Any number, also one that is stored as a tensor; one too large for a float is infinite."""
    if isinstance(value, StoredTensor) and value.size == 1 and len(read := value.sample()):
        value = float(read[0])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None or abs(number) > 2**53 else int(number)


def _numbers(values: object) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        return ()
    return tuple(n for value in values if (n := _number(value)) is not None)
