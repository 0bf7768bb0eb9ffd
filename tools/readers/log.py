"""What was logged, by raw key and step, before anything is named."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from typing import cast

import numpy as np

from firstbad.tools.run import FloatArray, IntArray

_MAX_STEP = 2**62
_MANY = 8


def number(value: object) -> float | None:
    """A logged value as a float (NaN and Inf included); None when it is missing or no number."""
    if type(value) is float:
        return value
    if isinstance(value, (bool, int, float, np.number, Decimal)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        try:
            return float(value) if "_" not in value else None
        except ValueError:
            return None
    return None


def _floats(values: list[object]) -> list[float] | None:
    """All values as floats, or None when one of them needs a closer look."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return cast(list[float], values)
    is_text = kinds == {str} and "_" not in "".join(cast(list[str], values))
    if not is_text and not kinds <= {float, int}:
        return None
    try:
        return list(map(float, cast(list[str], values)))
    except (ValueError, OverflowError):
        return None


def step_number(value: object) -> int | None:
    """A step as an int; None when it is missing, negative or not whole."""
    if isinstance(value, str):  # "40/1000"
        value = value.partition("/")[0]
    found = number(value)
    if found is None or not math.isfinite(found) or found != int(found):
        return None
    return int(found) if 0 <= found < _MAX_STEP else None


@dataclass
class Series:
    """One key: steps and values in the order in which they were read."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def merged(self) -> tuple[IntArray, FloatArray, int]:
        """Ascending unique steps, the value read last at each, and how many others it replaced."""
        steps = np.array(self.steps, np.int64)
        values = np.array(self.values, np.float64)
        if len(steps) < 2 or bool(np.all(steps[1:] > steps[:-1])):
            return steps, values, 0
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
        again = steps[1:] == steps[:-1]
        same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
        last = np.append(~again, True)
        return steps[last], values[last], int((again & ~same).sum())


class Log:
    """Series by raw key. What is added later replaces what was added at the same step."""

    def __init__(self) -> None:
        """Empty."""
        self.series: dict[str, Series] = {}
        self.not_numbers: set[str] = set()
        """Keys with a value that was neither a number nor missing."""

    def add(self, step: int, row: Mapping[str, object], skip: Collection[str] = ()) -> None:
        """Add the numbers of one row, without the keys of `skip`."""
        series = self.series
        for key, value in row.items():
            found = value if type(value) is float else number(value)
            if found is None:
                if value is not None and value != "":
                    self.not_numbers.add(key)
                continue
            if key in skip:
                continue
            own = series.get(key)
            if own is None:
                own = series[key] = Series()
            own.steps.append(step)
            own.values.append(found)

    def add_rows(
        self, steps: Sequence[int], rows: Sequence[Mapping[str, object]], skip: Collection[str] = ()
    ) -> None:
        """Add many rows: whole columns at once where rows of the same keys follow each other."""
        at = 0
        for names, found in groupby(rows, key=tuple):
            part = list(found)
            here = steps[at : at + len(part)]
            at += len(part)
            for name in names if len(part) >= _MANY else ():
                values = _floats([row[name] for row in part])
                if values is None:
                    for step, row in zip(here, part, strict=True):
                        self.add(step, {name: row[name]}, skip)
                elif name not in skip:
                    self.add_series(name, here, values)
            if len(part) < _MANY:
                for step, row in zip(here, part, strict=True):
                    self.add(step, row, skip)

    def add_series(self, key: str, steps: Iterable[int], values: Iterable[float]) -> None:
        """Add the values of one key."""
        own = self.series.setdefault(key, Series())
        own.steps.extend(steps)
        own.values.extend(values)

    def in_keys_of(self, other: Log) -> Log:
        """This log with the trackers' `train/x` and `eval/x` as `x` and `eval_x`.

        Only where the other log has them so, or where every key of this one has such a prefix,
        as Hugging Face writes them.
        """
        all_prefixed = all(key.startswith(("train/", "eval/")) for key in self.series)
        renamed = Log()
        for key, series in self.series.items():
            start, _, rest = key.partition("/")
            plain = {"train": rest, "eval": f"eval_{rest}"}.get(start, key)
            use = plain if all_prefixed or plain in other.series else key
            renamed.add_series(use, series.steps, series.values)
        return renamed

    def steps(self) -> set[int]:
        """Every step at which anything was logged."""
        return set().union(*(own.steps for own in self.series.values()))

    def fill(self, other: Log, *, only_new_steps: bool = False) -> tuple[int, set[str]]:
        """Take from another log what this one lacks; how many values of which keys.

        `only_new_steps` leaves out steps at which this log has anything at all.
        """
        taken, keys = 0, set()
        everywhere = np.array(sorted(self.steps()) if only_new_steps else [], np.int64)
        for key, series in other.series.items():
            own = self.series.get(key, Series())
            if not own.steps and not only_new_steps:
                self.add_series(key, series.steps, series.values)
                taken += len(series.steps)
                keys.add(key)
                continue
            steps = np.array(series.steps, np.int64)
            new = ~np.isin(steps, np.concatenate([everywhere, np.array(own.steps, np.int64)]))
            if count := int(new.sum()):
                self.add_series(key, steps[new].tolist(), np.array(series.values)[new].tolist())
                taken += count
                keys.add(key)
        return taken, keys

    def __bool__(self) -> bool:
        """Whether anything was logged."""
        return bool(self.series)
