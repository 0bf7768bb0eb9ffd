"""Is an evaluation that moves still the evaluation it was?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.outcome import looks_like_outcome
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, IntArray, Run, Signal

BESIDE = 3
"""Evaluations on each side whose scores are averaged."""
OTHER = 0.5
"""Share of prompts from which a set is another one."""
RESIZED = 0.05
"""Share by which a number of samples differs in more than rounding."""
LEAST_USUAL = 0.005
"""What a score moves by from one evaluation to the next, at least."""
_RUNTIME = re.compile(r"eval[_/]runtime")
HALF_DIGIT = 0.0005
"""What a logged speed may be off by: trainers write three decimals."""
_SPEED = re.compile(r"eval[_/]samples_per_second")
_COUNT = re.compile(r"(?:eval|val|validation|test)[_/](?:n|num)_(?:samples|examples|prompts)")
_OF_EVALUATION = re.compile(r"(?:^|[^a-z])(?:eval|evaluation|validation)(?:[^a-z]|$)", re.I)


class Evaluations(Dated):
    """What was evaluated on both sides of a change of it, and how far the score moved there."""

    asked: bool
    """The complaint is about evaluations."""
    n_evaluations: int
    set_known: bool
    """Prompts, or the number of samples, are known of the evaluations."""
    set_changed: bool
    """They change for good, with two evaluations alike before it at least."""
    size_before: float | None
    size_after: float | None
    other_prompts: float | None
    """Share of the prompts from there on that no earlier evaluation held; None without prompts."""
    settings_changed: bool
    """An event says that a setting of the evaluation changed there."""
    score_before: float | None
    """Mean score of up to three evaluations before the change; None where nothing changed."""
    score_after: float | None
    leap: float | None
    """Score of the first evaluation after the change less that of the last one before."""
    leap_over_usual: float | None
    """abs(leap) over the median of the other moves from one evaluation to the next."""
    training_move: float | None
    """Move of the same figure in training between the same two steps."""
    beyond_training: float | None
    """abs(leap - training_move)."""


@dataclass(frozen=True)
class _Change:
    """Index of the first evaluation after the change, and what changed."""

    at: int
    size: tuple[float, float] | None = None
    other: float | None = None
    said: str = ""


@tool
def compare_evaluations(
    run: Run, *, asked: bool = False, other: float = OTHER, resized: float = RESIZED
) -> Measured[Evaluations]:
    """The score of the evaluations beside what was evaluated: prompts, samples, settings.

    The number of samples follows from the logged count, or from the time of an evaluation and its
    samples per second; prompts from the rollouts of evaluations, where these are kept. A change
    counts where it lasts and what came before was alike at least twice: sets that are drawn anew
    each time change nothing. `other`: share of prompts from which a set is another one; `resized`:
    share by which its size differs. `asked` says that the complaint is about evaluations.

    Cannot tell: a change of sampling, of the prompt's wording or of the judging of the evaluation.
    """
    score = _score(run)
    if score is None or len(score.steps) < 2:
        raise NoData("no score of two evaluations or more is logged")
    steps = score.steps
    sizes = _sizes(run, steps)
    prompts = [
        frozenset(run.evaluations.batch(s).prompts) if s in run.evaluations.steps else None
        for s in steps.tolist()
    ]
    changes = [
        c for c in (_resized(sizes, resized), _exchanged(prompts, other), _said(run, steps)) if c
    ]
    change = min(changes, key=lambda c: c.at) if changes else None
    known = bool(np.isfinite(sizes).sum() >= 2) or sum(p is not None for p in prompts) >= 2
    metrics = Evaluations(
        asked=asked,
        n_evaluations=len(steps),
        set_known=known,
        set_changed=change is not None,
        **_figures(run, score, change),
    )
    rows: tuple[tuple[Scalar, ...], ...] = tuple(
        (
            int(s),
            round(float(v), 6),
            None if np.isnan(n) else round(float(n)),
            len(p) if p else None,
        )
        for s, v, n, p in zip(steps, score.values, sizes, prompts, strict=True)
    )
    table = Table(
        title="evaluations",
        columns=("step", score.source_key, "samples", "distinct prompts"),
        rows=rows[:60],
        cut_rows=max(0, len(rows) - 60),
    )
    return Measured(
        metrics,
        _told(metrics, change),
        tables=(table,),
        window=(int(steps[0]), int(steps[-1])),
        signal=f"`{score.source_key}`",
        quote=change.said if change else "",
    )


def _score(run: Run) -> Signal | None:
    """The reward part that scores the answer, as evaluations log it; else their whole reward."""
    parts = run.signals.under("eval/reward_part")
    named = [signal for name, signal in parts.items() if looks_like_outcome(name)]
    return named[0] if len(named) == 1 else run.signals.get("eval/reward_mean")


def _sizes(run: Run, steps: IntArray) -> FloatArray:
    """(E,) samples of each evaluation; NaN where they are not known."""
    kept = [
        float(len(run.evaluations.batch(s))) if s in run.evaluations.steps else np.nan
        for s in steps.tolist()
    ]
    if np.isfinite(kept).any():
        return np.array(kept)
    logged = {
        name: s for kind in (run.signals.unknown, run.signals.known) for name, s in kind.items()
    }

    def at(pattern: re.Pattern[str]) -> FloatArray:
        signal = next((s for name, s in logged.items() if pattern.fullmatch(name)), None)
        values = [None if signal is None else signal.at(step) for step in steps.tolist()]
        return np.array([np.nan if v is None else v for v in values], np.float64)

    counted = at(_COUNT)
    if np.isfinite(counted).any():
        return counted
    seconds = at(_RUNTIME)
    size = np.round(seconds * at(_SPEED))
    sure = seconds * HALF_DIGIT <= np.maximum(0.4, 0.005 * size)
    return np.where(sure, size, np.nan)


def _resized(sizes: FloatArray, share: float) -> _Change | None:
    """The number of samples changes for good."""
    apart = [not abs(n - sizes[0]) <= share * sizes[0] for n in sizes]
    at = _for_good(apart) if np.isfinite(sizes).all() and sizes[0] > 0 else None
    return None if at is None else _Change(at, size=(float(sizes[0]), float(sizes[at])))


def _exchanged(prompts: Sequence[frozenset[str] | None], share: float) -> _Change | None:
    """Most prompts are others from an evaluation on, where they were the same ones before."""
    sets = [p for p in prompts if p]
    if len(sets) < len(prompts):
        return None
    at = _for_good([len(p - sets[0]) > share * len(p) for p in sets])
    if at is None:
        return None
    seen, later = frozenset().union(*sets[:at]), frozenset().union(*sets[at:])
    return _Change(at, other=round(len(later - seen) / len(later), 6))


def _for_good(apart: Sequence[bool]) -> int | None:
    """First index from which all are apart from the first, with two alike before it at least."""
    at = next((i for i, other in enumerate(apart) if other), None)
    return at if at is not None and at >= 2 and all(apart[at:]) else None


def _said(run: Run, steps: IntArray) -> _Change | None:
    """An event between two evaluations that names a setting of theirs."""
    for event in run.events:
        if event.kind not in ("config_change", "phase") or event.step is None:
            continue
        after = np.flatnonzero(steps >= event.step)
        if _OF_EVALUATION.search(event.text) and len(after) and after[0] >= 1:
            return _Change(int(after[0]), said=event.text)
    return None


def _figures(run: Run, score: Signal, change: _Change | None) -> dict[str, Any]:
    none: dict[str, Any] = dict.fromkeys(
        (
            "size_before", "size_after", "other_prompts", "score_before", "score_after", "leap",
            "leap_over_usual", "training_move", "beyond_training",
        )
    )  # fmt: skip
    if change is None:
        return none | {"settings_changed": False}
    at, values = change.at, score.values
    moves = np.diff(values)
    leap = float(moves[at - 1])
    others = np.abs(np.delete(moves, at - 1))
    usual = max(float(np.median(others)) if len(others) else 0.0, LEAST_USUAL)
    move = _training_move(run, score, at)
    return none | {
        "size_before": change.size[0] if change.size else None,
        "size_after": change.size[1] if change.size else None,
        "other_prompts": change.other,
        "settings_changed": bool(change.said),
        "score_before": round(float(values[max(0, at - BESIDE) : at].mean()), 6),
        "score_after": round(float(values[at : at + BESIDE].mean()), 6),
        "leap": round(leap, 6),
        "leap_over_usual": round(abs(leap) / usual, 4),
        "training_move": None if move is None else round(move, 6),
        "beyond_training": None if move is None else round(abs(leap - move), 6),
        "last_good_step": int(score.steps[at - 1]),
        "first_bad_step": int(score.steps[at]),
        "sampled": True,
    }


def _training_move(run: Run, score: Signal, at: int) -> float | None:
    """Mean of the figure in training over as many steps as lie between two evaluations."""
    training = run.signals.get(score.name.removeprefix("eval/"))
    if training is None:
        return None
    before, after = int(score.steps[at - 1]), int(score.steps[at])
    width = after - before
    sides = [
        training.values[(training.steps > end - width) & (training.steps <= end)]
        for end in (before, after)
    ]
    if not all(len(side) for side in sides):
        return None
    return float(sides[1].mean() - sides[0].mean())


def _told(m: Evaluations, change: _Change | None) -> str:
    if change is None:
        alike = (
            "what was evaluated stays the same"
            if m.set_known
            else "what was evaluated is not known"
        )
        return f"{m.n_evaluations} evaluations; {alike}"
    what = []
    if m.size_before is not None and m.size_after is not None:
        what.append(f"{number(m.size_before)} -> {number(m.size_after)} samples")
    if m.other_prompts is not None:
        what.append(f"{percent(m.other_prompts)} of the prompts are new")
    if m.settings_changed:
        what.append("a setting changed")
    return (
        f"{m.n_evaluations} evaluations; from step {m.first_bad_step} on it is another one "
        f"({', '.join(what)}), and its score moves by {number(m.leap, digits=3)}, in training by "
        f"{number(m.training_move, digits=3)}"
    )
