"""First tokens behind fixed prompts after each delivery: which weights does the engine serve?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.flight import Sync
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run

APART = 0.02
"""Nats between the engine and the weights sent, somewhere, from which older ones are believed."""
FITS = 1 / 3
"""Of that difference: what older weights must come below to fit the engine."""
BETTER = 1 / 2
"""Of what the best single version leaves: what an average must come below. One version that is
served is always the better fit: an average carries the noise of two deliveries."""
BLENDS = (0.05, 0.95)
"""Weight of the answers before, in a moving average: less is noise, more an engine that stands."""
FEWEST = 3
"""Deliveries that an average must fit so much better."""
SAME_WEIGHT = 0.1
"""By which that weight may vary from delivery to delivery: an average made by design has one."""
SHOWN = 200


class FirstTokens(Dated):
    """Log-probs of the same tokens behind the same prompts on both sides, delivery by delivery.

    Differences are means of abs(engine - trainer) in nats.
    """

    n_deliveries: int
    """With first tokens of both sides."""
    n_tokens: int
    """Compared over all of them."""
    difference: float
    """From the weights that were sent, over all deliveries."""
    difference_worst: float
    """Of the delivery where it is largest."""
    n_behind: int
    """Deliveries from which the weights of an earlier one lie less than a third as far as those
    sent, and which no moving average fits; 0 where that is nowhere more than 0.02 nats."""
    n_averaged: int
    """Deliveries that an earlier version would fit, and that a moving average of the weights sent
    fits better: `average_weight` of the answers before, the rest those of the weights sent. Told
    where every delivery was asked, and three or more of them lie half as far from the average."""
    average_weight: float | None
    averaged_difference: float | None
    """Over those: from that average."""
    version_difference: float | None
    """Over those: from the one version that fits best."""
    behind_difference: float | None
    """Over those: from the weights that were sent."""
    fitting_difference: float | None
    """Over those: from the earlier weights that fit best."""
    fitting_share: float | None
    """That over the one above: what the earlier weights leave unexplained."""
    fitting_step: int | None
    """Optimizer steps that the weights have seen which fit the last of those."""
    slope: float | None
    """Least squares of the engine's log-probs on those of the weights sent, each about its mean
    over the tokens of a prompt: 1 for one temperature, 1/T for an engine that divides by T."""
    slope_size: float | None
    """abs(slope - 1)."""
    slope_fit: float | None
    """Share of the squared difference about the means that another slope explains."""


class _Sides(NamedTuple):
    """(K,) log-probs of one delivery, by prompt and token."""

    step: int
    keys: tuple[tuple[str, int], ...]
    trainer: FloatArray
    engine: FloatArray


@tool
def compare_first_tokens(run: Run) -> Measured[FirstTokens]:
    """The engine's answers to fixed prompts after each delivery, against every version sent.

    The trainer's log-probs of the same tokens are on record for each delivery, so that the engine's
    are held against those sent and those of every earlier one: the version that fits is the one it
    serves.

    Cannot tell: weights that give the fixed prompts the same answers; whether a moving average of
    the weights is served by design; where none of the recorded
    versions fits, whether the engine computes otherwise or serves weights from before the record.
    """
    sides = [s for sync in sorted(run.flight.syncs, key=lambda s: s.step) if (s := _sides(sync))]
    if not sides:
        raise NoData("no first tokens of fixed prompts in the ledger of weight deliveries")
    sent = [float(np.abs(s.engine - s.trainer).mean()) for s in sides]
    best = _fitting(sides)
    older = [of < i and fit < FITS * sent[i] for i, (of, fit) in enumerate(best)]
    sure = any(is_older and away > APART for is_older, away in zip(older, sent, strict=True))
    weight, blend = _moving_average(sides, run.flight.syncs)
    averaged = [i for i, old in enumerate(older) if old and blend[i] < best[i][1]]
    # An average comes near a single version now and then.
    if sum(away < BETTER * fit for away, (_, fit) in zip(blend, best, strict=True)) < FEWEST:
        averaged = []
    late = [i for i, is_older in enumerate(older) if is_older and sure and i not in averaged]
    first = late[0] if late else None
    slope, explained = _slope(sides)
    behind = float(np.mean([sent[i] for i in late])) if late else None
    fitting = float(np.mean([best[i][1] for i in late])) if late else None
    metrics = FirstTokens(
        n_deliveries=len(sides),
        n_tokens=sum(len(s.keys) for s in sides),
        difference=_r(np.mean(sent)),
        difference_worst=_r(max(sent)),
        n_behind=len(late),
        n_averaged=len(averaged),
        average_weight=_r(weight) if averaged else None,
        averaged_difference=_r(np.mean([blend[i] for i in averaged])) if averaged else None,
        version_difference=_r(np.mean([best[i][1] for i in averaged])) if averaged else None,
        behind_difference=None if behind is None else _r(behind),
        fitting_difference=None if fitting is None else _r(fitting),
        fitting_share=_r(fitting / behind) if fitting is not None and behind else None,
        fitting_step=sides[best[late[-1]][0]].step if late else None,
        slope=slope,
        slope_size=None if slope is None else _r(abs(slope - 1)),
        slope_fit=explained,
        # What was delivered after step s is sampled from in step s + 1.
        first_bad_step=None if first is None else sides[first].step + 1,
        last_good_step=sides[first].step if first else None,
        last_bad_step=sides[late[-1] + 1].step if late and late[-1] + 1 < len(sides) else None,
        from_start=first == 0,
    )
    rows: list[tuple[Scalar, ...]] = [
        (s.step, len(s.keys), _r(sent[i]), sides[best[i][0]].step, _r(best[i][1]))
        for i, s in enumerate(sides)
    ]
    text = (
        f"after {len(sides)} deliveries the engine's first tokens lie "
        f"{number(metrics.difference, digits=3)} nats from those of the weights sent"
    )
    if late:
        text += (
            f"; after {len(late)} of them earlier weights fit, to "
            f"{number(metrics.fitting_difference, digits=3)} nats"
        )
    if averaged:
        text += (
            f"; after {len(averaged)} of them a moving average of those sent fits, to "
            f"{number(metrics.averaged_difference, digits=3)} nats"
        )
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title="first tokens: the engine against the weights sent, and those that fit",
                columns=("after step", "tokens", "nats from those sent", "fits step", "nats"),
                rows=tuple(rows[-SHOWN:]),
                cut_rows=max(0, len(rows) - SHOWN),
            ),
        ),
        window=(sides[0].step, sides[-1].step),
        signal="first tokens of fixed prompts",
    )


def _sides(sync: Sync) -> _Sides | None:
    both = {
        (t.prompt, t.token_id): (t.trainer, t.engine)
        for t in sync.first_tokens
        if t.token_id is not None and t.trainer is not None and t.engine is not None
    }
    if not both:
        return None
    keys = tuple(sorted(both))
    values = np.array([both[key] for key in keys], np.float64)
    return _Sides(sync.step, keys, values[:, 0], values[:, 1])


def _fitting(sides: list[_Sides]) -> list[tuple[int, float]]:
    """Of each delivery: which one, it or an earlier one, has the weights that fit the engine best.

    Of equally good ones the latest: weights that stood still are not behind.
    """
    keys = sorted({key for s in sides for key in s.keys})
    place = {key: k for k, key in enumerate(keys)}
    sent = np.full((len(sides), len(keys)), np.nan)
    for i, s in enumerate(sides):
        sent[i, [place[key] for key in s.keys]] = s.trainer
    found = []
    for i, s in enumerate(sides):
        away = np.abs(sent[: i + 1, [place[key] for key in s.keys]] - s.engine)
        asked = np.isfinite(away)
        mean = np.where(asked, away, 0.0).sum(axis=1) / np.maximum(asked.sum(axis=1), 1)
        mean[2 * asked.sum(axis=1) < len(s.keys)] = np.inf  # too few of the same tokens
        of = i - int(mean[::-1].argmin())
        found.append((of, float(mean[of])))
    return found


def _moving_average(sides: list[_Sides], syncs: Sequence[Sync]) -> tuple[float, list[float]]:
    """The weight w of w (answers before) + (1 - w) (weights sent), and how far each delivery is.

    Weights that are averaged give averaged logits where they move little, and an average of older
    ones is in the answers before. Inf where nothing is told: at the first delivery, where one was
    not asked, so that a version is missing between two, and where no one weight fits.
    """
    away = [math.inf] * len(sides)
    if len(sides) != len(syncs):
        return 0.0, away
    pairs = {}
    for i in range(1, len(sides)):
        now, was = sides[i], dict(zip(sides[i - 1].keys, sides[i - 1].engine, strict=True))
        known = np.array([key in was for key in now.keys])
        if 2 * known.sum() < len(known):
            continue
        before = np.array([was[key] for key in now.keys if key in was])
        back, lag = before - now.trainer[known], now.engine[known] - now.trainer[known]
        if back @ back > 0:
            pairs[i] = back, lag, float(back @ lag) / float(back @ back)
    blends = [w for _, _, w in pairs.values() if BLENDS[0] < w < BLENDS[1]]
    if not blends:
        return 0.0, away
    weight = float(np.median(blends))
    for i, (back, lag, own) in pairs.items():
        if abs(own - weight) < SAME_WEIGHT:
            away[i] = float(np.abs(lag - weight * back).mean())
    return weight, away


def _slope(sides: list[_Sides]) -> tuple[float | None, float | None]:
    """Slope of the engine's log-probs on the trainer's, and what it explains of their difference.

    Dividing logits by a temperature scales differences of log-probs inside one distribution.
    """
    xs, ys = [], []
    for s in sides:
        prompts = np.array([prompt for prompt, _ in s.keys])
        for prompt in sorted(set(prompts.tolist())):
            of = prompts == prompt
            if of.sum() > 1:
                xs.append(s.trainer[of] - s.trainer[of].mean())
                ys.append(s.engine[of] - s.engine[of].mean())
    if not xs:
        return None, None
    x, y = np.concatenate(xs), np.concatenate(ys)
    away = float(((y - x) ** 2).sum())
    if not (x @ x) > 0 or not away > 0:
        return (1.0, 0.0) if (x @ x) > 0 else (None, None)
    slope = float(x @ y) / float(x @ x)
    return _r(slope), _r(1 - float(((y - slope * x) ** 2).sum()) / away)


def _r(value: float | np.floating) -> float:
    return round(float(value), 6)
