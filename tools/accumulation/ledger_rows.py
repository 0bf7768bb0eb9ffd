"""Do all rows of a step stand in one of its micro-batches, and is the gradient that of them all?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from firstbad.tools.accumulation.ledger import SAME, Update, log_agreement, span_of, updates_of
from firstbad.tools.beside import rows_of_capture
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, Run

EQUAL = 1e-6
"""Relative difference of norms that are one gradient's."""
OUTSIDE = 1e6
"""Stands for a norm beside parts that have none."""
COUNTS = 0.01
"""A gradient below this share of another one is too small to tell whether it reached the sum."""


class MicrobatchRows(Dated):
    """Rows that a step was to train, against those of its micro-batches."""

    n_updates: int
    n_named: int
    """Updates that name both."""
    log_agreement: float | None
    """Share of updates whose logged loss is the sum of the ledger's; None where none is logged.
    Below 1 the ledger may hold a part of the micro-batches."""
    whole_batch: bool | None
    """An update trains all rows of a generation batch, by the settings; None: they do not tell."""
    share_missing: float
    """Updates that lack rows: by name, or by number of micro-batches of one size. Rows of ranks
    that are not in the ledger do not count."""
    missing_since: float
    """... from the first one that lacks some on; 0 without one."""
    rows_missing: float
    """Share of rows that they lack, the median."""
    share_twice: float
    """Updates in whose micro-batches on one rank a row stands more often than it was to be trained.
    Where no rows are missing the dates are those of these."""
    twice_since: float
    """... from the first one on; 0 without one."""
    rows_twice: float
    """Surplus rows over the rows to train, the median of these updates."""


@tool
def check_microbatch_rows(run: Run) -> Measured[MicrobatchRows]:
    """Rows of each update that stand in none of its micro-batches, or in several.

    By the names of the rows that were to be trained; where names are missing, by the number of
    micro-batches against the most that an update has, if all have one size.

    Cannot tell: rows that a filter took out before training, gradients lost after the loss, nor
    rows that two ranks train, which share them by design where they hold parts of one model.
    """
    updates = updates_of(run)
    named = [u for u in updates if u.trained and all(p.samples for p in u.parts)]
    if named:
        absent = [_absent(run, u) for u in named]
        surplus = [_surplus(u) for u in named]
        used: Sequence[Update] = named
    else:
        absent, surplus, used = _by_number(updates), [0.0] * len(updates), updates
    bad, twice = np.array(absent) > 0, np.array(surplus) > 0
    metrics = MicrobatchRows(
        n_updates=len(used),
        n_named=len(named),
        log_agreement=log_agreement(used),
        whole_batch=_whole_batch(run),
        share_missing=round(float(bad.mean()), 6),
        missing_since=_from_first(bad),
        rows_missing=round(float(np.median(np.array(absent)[bad])), 6) if bad.any() else 0.0,
        share_twice=round(float(twice.mean()), 6),
        twice_since=_from_first(twice),
        rows_twice=round(float(np.median(np.array(surplus)[twice])), 6) if twice.any() else 0.0,
        **asdict(span_of([u.step for u in used], bad if bad.any() else twice)),
    )
    text = f"{len(used)} updates: all rows stand in a micro-batch"
    if bad.any():
        text = (
            f"in {percent(metrics.share_missing)} of {len(used)} updates "
            f"{percent(metrics.rows_missing)} of the rows stand in no micro-batch"
        )
    elif twice.any():
        text = (
            f"in {percent(metrics.share_twice)} of {len(used)} updates "
            f"{percent(metrics.rows_twice)} more rows stand in the micro-batches than were to train"
        )
    return Measured(metrics, text, signal="rows of the micro-batches")


def _from_first(flags: BoolArray) -> float:
    """Share that is set from the first one on; 0 without one."""
    return round(float(flags[int(np.argmax(flags)) :].mean()), 6)


def _whole_batch(run: Run) -> bool | None:
    accumulation = run.config.number("gradient_accumulation_steps")
    if not accumulation:
        return None
    if run.config.number("updates_per_batch") not in (None, 1.0):
        return False
    return (run.config.number("steps_per_generation") or accumulation) <= accumulation


def _absent(run: Run, update: Update) -> float:
    """Share of the rows to train that no micro-batch holds."""
    due = {*update.trained}
    if (batch := rows_of_capture(run, update.step)) is not None:
        ranks = [part.rank for part in update.parts if part.rank is not None]
        if batch.rank is not None and batch.sample is not None and ranks:
            there = np.isin(batch.rank, ranks)
            due -= {name for name, own in zip(batch.sample, there, strict=True) if not own}
    return 1 - len(due & _held(update).keys()) / len(due) if due else 0.0


def _surplus(update: Update) -> float:
    """Rows that the micro-batches of a rank hold beyond those to train, over these."""
    if not update.trained or len({part.epoch for part in update.parts}) > 1:
        return 0.0  # several epochs in one update: each row comes once in each
    due = Counter(update.trained)
    held = Counter((part.rank, name) for part in update.parts for name in part.samples)
    return sum(max(0, n - max(due[name], 1)) for (_, name), n in held.items()) / due.total()


def _held(update: Update) -> Counter[str]:
    return Counter(name for part in update.parts for name in part.samples)


def _by_number(updates: Sequence[Update]) -> list[float]:
    """Share of micro-batches that each update lacks.

    Raises:
        NoData: micro-batches differ in size, so that their number tells nothing.
    """
    sizes = {part.n_samples for update in updates for part in update.parts}
    if len(sizes) != 1 or None in sizes:
        raise NoData("neither names of the rows nor micro-batches of one size in the ledger")
    most = max(len(update.parts) for update in updates)
    return [1 - len(update.parts) / most for update in updates]


class MicrobatchNorms(Dated):
    """Norm of the whole gradient against those of its micro-batches."""

    n_updates: int
    log_agreement: float | None
    """As in `check_microbatch_rows`."""
    share_single: float | None
    """Updates of several micro-batches whose norm is that of one of them; None without such."""
    single_since: float
    """... of those from the first such one on."""
    share_outside: float
    """Updates whose norm no sum of the parts can have: above the sum of their norms, or below the
    largest less all others."""
    norm_over_parts: float
    """Norm over the sum of the norms of the parts, the median of those outside or of all."""
    n_silent: int
    """Updates with a micro-batch of trained tokens that is multiplied by 0, beside one that is
    not."""


@tool
def check_microbatch_norms(run: Run) -> Measured[MicrobatchNorms]:
    """Gradient norm before clipping against the norms of the micro-batches' own gradients.

    The norm of a sum lies between the largest part less all others, and the sum of all (triangle
    inequality). Where it is that of one part to the last digits, the others did not reach the sum.

    Cannot tell: one of many parts that is lost, since the rest can have any norm in between.
    """
    updates = [
        u
        for u in updates_of(run)
        if u.norm and all(p.grad_norm is not None for p in u.parts) and u.averaged is not None
    ]
    if not updates:
        raise NoData("the ledger has no gradient norms of micro-batches beside that of the step")
    found = [_against_parts(u) for u in updates]
    outside = np.array([max(low, high) > 1 + SAME for low, high, _ in found])
    single = np.array([s is True for *_, s in found])
    several = [s for *_, s in found if s is not None]
    over = np.array([high for _, high, _ in found])
    silent = np.array([_has_silent(u) for u in updates])
    metrics = MicrobatchNorms(
        n_updates=len(updates),
        log_agreement=log_agreement(updates),
        share_single=round(float(np.mean(several)), 6) if several else None,
        single_since=_since([s is True if s is not None else None for *_, s in found]),
        share_outside=round(float(outside.mean()), 6),
        norm_over_parts=round(float(np.median(over[outside] if outside.any() else over)), 6),
        n_silent=int(silent.sum()),
        **asdict(span_of([u.step for u in updates], _most(outside, single, silent))),
    )
    return Measured(
        metrics,
        f"{len(updates)} updates: the gradient norm is {number(metrics.norm_over_parts, digits=3)} "
        f"times the sum of the micro-batches' norms; {percent(metrics.share_outside)} outside of "
        f"what their sum can have, {percent(metrics.share_single or 0.0)} with the norm of one "
        "micro-batch alone",
        signal="gradient norm against its micro-batches",
    )


def _since(single: Sequence[bool | None]) -> float:
    """Share that is True of what is known, from the first True on."""
    if True not in single:
        return 0.0
    late = [s for s in single[single.index(True) :] if s is not None]
    return round(sum(late) / len(late), 6)


def _most(*flags: BoolArray) -> BoolArray:
    """The flag that is set most often; of equal ones the first."""
    return max(flags, key=lambda flag: int(flag.sum()))


def _has_silent(update: Update) -> bool:
    """Whether a micro-batch with trained tokens counts 0 times, beside one that counts."""
    scales = [part.scale for part in update.parts if part.n_tokens]
    return 0.0 in scales and any(scales)


def _against_parts(update: Update) -> tuple[float, float, bool | None]:
    """Lower bound over norm, norm over upper bound, and whether it is that of one part."""
    ranks = update.ranks if update.averaged else 1
    parts = np.array([part.grad_norm for part in update.parts], float) / ranks
    norm = update.norm or 0.0
    total, largest = float(parts.sum()), float(parts.max())
    low = (2 * largest - total) / norm
    high = min(norm / total, OUTSIDE) if total else OUTSIDE
    alone = [
        abs(norm / part - 1) < EQUAL and total - part > COUNTS * norm for part in parts if part
    ]
    return low, high, any(alone) if len(parts) > 1 and total - largest > COUNTS * norm else None
