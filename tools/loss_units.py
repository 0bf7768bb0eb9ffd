"""Which logged rows and which rollouts belong together: those that cover the same micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firstbad.tools.run import FloatArray, IntArray, Run, Signal
from firstbad.tools.segments import launch_steps
from firstbad.tools.updates import micro_batches_per_batch

Span = tuple[int, int]
"""First micro-batch and the one after the last, counted over the run."""
SCHEDULED = ("trl", "ms-swift")
"""Frameworks that cut rollout batches and average logged rows as the Hugging Face trainer does."""


class Units:
    """U units, each of logged rows and rollout batches that are the mean of the same steps.

    A row is the mean over `logging_steps`, a rollout batch may serve several steps, or a step train
    several batches. A unit is the least stretch in which both come out even; a stretch that neither
    rows nor batches cover without a gap is none. Of several passes over a batch the first counts,
    where rows tell it apart: there every ratio is 1.
    """

    def __init__(self, run: Run, batches: IntArray, logged: IntArray) -> None:
        """`batches` (S,) and `logged` (L,) are steps of rollouts and of the logged loss."""
        micro = _micro_batches(run)
        windows = _windows(run, logged, micro)
        found: list[tuple[list[int], list[int]]] = []
        for spans in _spans(run, batches, micro):
            found = _even(spans, windows)
            if found:
                break
        rows = [of_rows for _, of_rows in found]
        self.steps: IntArray = logged[[max(of_unit) for of_unit in rows]] if rows else logged[:0]
        """(U,) last logged step of each."""
        self.starts: IntArray = batches[[min(b) for b, _ in found]] if found else batches[:0]
        """(U,) first step with rollouts of each."""
        opened = [min(windows[i][0] for i in of_unit) // micro for of_unit in rows]
        self.opened: IntArray = np.array(opened, np.int64)
        """(U,) last step before each."""
        self.plain = all(len(b) == len(r) == 1 for b, r in found) and micro == 1
        self._size = len(batches)
        self._batches = [b for b, _ in found]
        single = all(len(b) == 1 for b in self._batches)
        self._singly = np.array([b[0] for b in self._batches], np.int64) if single else None
        of_rows = [(i, unit) for unit, of_unit in enumerate(rows) for i in of_unit]
        places, self._unit = np.array(of_rows, np.int64).reshape(-1, 2).T
        self._logged: IntArray = logged[places]
        """(L,) logged steps that belong to a unit; `_unit` (L,) is which, `_width` (L,) how many
        micro-batches each is the mean of."""
        self._width = np.array([windows[i][1] - windows[i][0] for i in places], np.float64)

    def __len__(self) -> int:
        """Number of units."""
        return len(self.steps)

    def logged(self, signal: Signal | None) -> FloatArray:
        """(U,) mean of a signal over the rows that hold it; NaN where none does."""
        if signal is None:
            return np.full(len(self), np.nan)
        values = signal.on(self._logged)
        use = ~np.isnan(values)
        unit, width = self._unit[use], self._width[use]
        total = np.bincount(unit, weights=width * values[use], minlength=len(self))
        weight = np.bincount(unit, weights=width, minlength=len(self))
        found: FloatArray = np.divide(
            total, weight, out=np.full(len(self), np.nan), where=weight > 0
        )
        return found

    def mean(self, values: FloatArray) -> FloatArray:
        """(U,) mean over the batches of each unit, of (S,) values."""
        if self._singly is not None:
            return values[self._singly].astype(np.float64)
        return np.array([values[b].mean() for b in self._batches], np.float64)

    def root(self, values: FloatArray) -> FloatArray:
        """(U,) spread of that mean, of (S,) spreads that are independent."""
        if self._singly is not None:
            return np.sqrt(values[self._singly] ** 2)
        return np.array([np.sqrt((values[b] ** 2).sum()) / len(b) for b in self._batches])

    def of_batches(self, values: FloatArray) -> FloatArray:
        """(S,) the (U,) value of each batch's unit; NaN for a batch without one."""
        found = np.full(self._size, np.nan)
        for unit, b in enumerate(self._batches):
            found[b] = values[unit]
        return found


def train_whole_batches(run: Run) -> bool:
    """Whether every logged row is the mean of whole rollout batches."""
    accumulation = run.config.number("gradient_accumulation_steps")
    parts = run.config.number("steps_per_generation") or accumulation
    every = max(1.0, run.config.number("logging_steps") or 1.0)
    if run.framework not in SCHEDULED or not accumulation or not parts:
        return True
    return every * accumulation % parts == 0


def _micro_batches(run: Run) -> int:
    """Micro-batches of a step; 1 where nothing is known of how batches are cut."""
    accumulation = run.config.number("gradient_accumulation_steps") or 1.0
    return int(accumulation) if run.framework in SCHEDULED else 1


def _windows(run: Run, logged: IntArray, micro: int) -> list[Span]:
    """Micro-batches that each logged row is the mean of."""
    every = max(1, int(run.config.number("logging_steps") or 1))
    before = np.concatenate([[0], logged[:-1]]) if len(logged) else logged
    starts = np.maximum(before, logged - every).tolist()
    launches = launch_steps(run, logged).tolist()
    return [
        (max(start, launch - 1) * micro, step * micro)
        for start, launch, step in zip(starts, launches, logged.tolist(), strict=True)
    ]


def _spans(run: Run, batches: IntArray, micro: int) -> list[list[Span]]:
    """Micro-batches that train each rollout batch: on the first pass, and on all passes."""
    own = [((step - 1) * micro, step * micro) for step in batches.tolist()]
    if run.framework not in SCHEDULED:
        return [own]
    accumulation = float(micro)
    period = int(micro_batches_per_batch(run, accumulation))
    a_pass = int(run.config.number("steps_per_generation") or accumulation)
    starts = []
    launches = launch_steps(run, batches).tolist()
    for step, launch in zip(batches.tolist(), launches, strict=True):
        base = (launch - 1) * micro  # the batch that the last micro-batch of the step is of
        starts.append(base + (step * micro - 1 - base) // period * period)
    if len(set(starts)) < len(starts):  # more batches than these settings make
        return [own]
    return [[(s, s + a_pass) for s in starts], [(s, s + period) for s in starts]]


def _even(spans: Sequence[Span], windows: Sequence[Span]) -> list[tuple[list[int], list[int]]]:
    """Indices of spans and windows, by stretch that both cover evenly."""
    marked = sorted(
        [(*s, i, 0) for i, s in enumerate(spans)] + [(*w, i, 1) for i, w in enumerate(windows)]
    )
    found: list[tuple[list[int], list[int]]] = []
    start = stop = 0
    held: tuple[list[int], list[int]] = ([], [])
    covered = [0, 0]

    def close() -> None:
        if covered[0] == covered[1] == stop - start and stop > start:
            found.append(held)

    for a, b, index, kind in marked:
        if a >= stop:
            close()
            start, stop, held, covered = a, b, ([], []), [0, 0]
        stop = max(stop, b)
        held[kind].append(index)
        covered[kind] += b - a
    close()
    return found
