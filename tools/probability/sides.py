"""Log-probs of the sampled tokens on all sides, where weights had not moved between the passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from firstbad.tools.beside import rows_of_capture
from firstbad.tools.run import BoolArray, Capture, FloatArray, IntArray, Run
from firstbad.tools.tokens import completion_end
from firstbad.tools.updates import first_updates

OF_TRAINER = ("old", "new", "recheck")
"""Passes of the trainer; its own log-probs are those of the last that was captured."""


@dataclass(frozen=True)
class Sides:
    """One capture of fresh rollouts: R rows, T tokens; None where a side was not captured."""

    step: int
    ids: IntArray
    """(R, T)"""
    real: BoolArray
    """(R, T) sampled by the policy, up to the first stop."""
    logp: dict[str, FloatArray]
    """(R, T) each: `old`, `new`, `recheck`, `layout`, `engine`, `ref`. `new` only where the pass
    is known to have used the weights of `old`."""
    entropy: FloatArray | None
    varentropy: FloatArray | None
    lag: FloatArray | None
    """(R,) updates that the trainer's weights are ahead of those that sampled the row, as the
    record claims; NaN for rows of which it says nothing, None where it says nothing of any."""
    pads: dict[str, FloatArray]
    """(R,) each: tokens of padding before the answer, and how far its first position is off."""

    @property
    def trainer(self) -> FloatArray | None:
        """(R, T) the trainer's own log-probs: the repeated pass, or the nearest to it."""
        return next((self.logp[n] for n in reversed(OF_TRAINER) if n in self.logp), None)

    def side(self, name: str) -> FloatArray | None:
        """(R, T) one side by name; `trainer` is the trainer's own."""
        return self.trainer if name == "trainer" else self.logp.get(name)

    @property
    def current(self) -> BoolArray:
        """(R, T) sampled tokens of rows that claim to be sampled by the weights of this pass."""
        if self.lag is None:
            return self.real
        return np.asarray(self.real & (self.lag == 0)[:, None])


def read_sides(run: Run, *needs: str) -> Iterator[Sides]:
    """Captures of fresh rollouts, in step order, that hold the trainer's log-probs.

    Dumps of a run hold the same fields: where the first, the middle and the last lack one of the
    sides that are needed, the others are not read.
    """
    wanted = [OF_TRAINER if name == "trainer" else (name,) for name in needs]
    if not any(
        all(any(f"logp_{n}" in c.arrays for n in names) for names in wanted)
        for c in samples_of(run)
    ):
        return
    for capture in run.captures:
        if run.fresh_at(capture.step) and (found := _read(run, capture)) is not None:
            yield found


def samples_of(run: Run) -> Iterator[Capture]:
    """The first, the middle and the last capture, where they can be read."""
    steps = run.captures.steps.tolist()
    for i in sorted({0, len(steps) // 2, len(steps) - 1}) if steps else ():
        if (capture := run.captures.readable(steps[i])) is not None:
            yield capture


def claimed_lag(run: Run, step: int) -> FloatArray | None:
    """(R,) updates between the weights that sampled each row of a step and the trainer's.

    NaN for a row that names none; None where no row does, or the trainer's version is not known.
    """
    rows = rows_of_capture(run, step)
    if step not in run.flight.steps or rows is None:
        return None
    ours, theirs = run.flight.at(step).policy_version, rows.policy_version
    return None if ours is None or theirs is None else ours - theirs


def _read(run: Run, capture: Capture) -> Sides | None:
    ids = capture.arrays.get("token_id")
    if ids is None or ids.ndim != 2:
        return None
    untouched = _untouched(run, capture.step)
    logp = {}
    for name in ("old", "new", "recheck", "layout", "engine", "ref"):
        values = capture.numbers(f"logp_{name}")
        if values is not None and values.shape == ids.shape:
            logp[name] = values
    if untouched is False or (untouched is None and logp.keys() & {"old", "recheck"}):
        logp.pop("new", None)
    if not logp.keys() & set(OF_TRAINER):
        return None
    lag = claimed_lag(run, capture.step)
    return Sides(
        capture.step,
        np.asarray(ids).astype(np.int64),
        completion_end(run, capture).real,
        logp,
        _shaped(capture, "entropy", ids.shape),
        _shaped(capture, "varentropy", ids.shape),
        lag if lag is not None and len(lag) == len(ids) else None,
        _pads(capture),
    )


def _untouched(run: Run, step: int) -> bool | None:
    """Whether the pass was made before any update on its rollouts; None: not known."""
    if step in run.flight.steps and (said := run.flight.at(step).first_pass) is not None:
        return said
    first = first_updates(run, np.array([step]))
    return None if first is None else bool(first[0])


def _shaped(capture: Capture, name: str, shape: tuple[int, ...]) -> FloatArray | None:
    values = capture.numbers(name)
    return values if values is not None and values.shape == shape else None


def _pads(capture: Capture) -> dict[str, FloatArray]:
    found = {}
    prompt = capture.mask("prompt_mask")
    if prompt is not None:
        found["padding"] = (~prompt).sum(axis=1).astype(float)
    position = capture.numbers("position")
    if prompt is not None and position is not None and position.shape[1]:
        found["offset"] = position[:, 0] - prompt.sum(axis=1)
    return found


def pooled(sides: list[Sides], left: str, right: str) -> list[tuple[Sides, BoolArray, FloatArray]]:
    """Captures that have both sides: the tokens compared (R, T), and left - right of each.

    Rows that claim older weights are left out: there a difference is legal, from the engine and
    from `old`, which then belongs to the weights that sampled.
    """
    found = []
    for each in sides:
        a, b = each.side(left), each.side(right)
        if a is None or b is None:
            continue
        use = each.current & np.isfinite(a) & np.isfinite(b)
        if use.any():
            found.append((each, use, np.where(use, a - b, 0.0)))
    return found
