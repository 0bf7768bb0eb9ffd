"""Completions of one prompt that are the same word for word, and whether chance makes them so."""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, FloatArray, IntArray, RolloutBatch, Run
from firstbad.tools.tokens import completion_end

FEWEST = 20
"""Groups below which nothing is compared."""
LONG = 3
"""Words from which on a completion counts: shorter ones repeat by themselves."""
LOOKED_AT = 12
"""Steps that show whether rows were sorted."""
NEARLY = 0.9
"""Share of equal completions at one pair of places that dates equal seeds."""


class Duplicates(Dated):
    """Pairs of completions of one prompt with the same text, as shares of all such pairs.

    Samples are exchangeable: whatever the policy, two places of a group hold the same text as often
    as any other two. Equal seeds break that: the places that share a seed are the same always.
    Counted from the step on at which such places begin to be the same, where there is one.
    """

    n_groups: int
    pair_rate: float
    """Of all pairs of completions of one prompt: the same text."""
    pair_rate_worst: float
    """Of the pairs at the two places of a group where that is most frequent."""
    pair_rate_rest: float | None
    """Of the pairs at places that are less alike than half of that; None where there are none."""
    places_alike: int
    """Pairs of places at which it is as frequent as there, less a tenth."""
    places_share: float
    """Of the places of a group: those with such a twin. Few have one where two samples of each
    group are copies, or greedy, on purpose."""
    excess_z: float
    """(worst - rest) over its binomial standard error; 0 without a rest."""
    expected_rate: float | None
    """Share of equal pairs that the captured log-probs predict: the mean probability of a whole
    completion. None without captures of whole completions."""
    captured_rate: float | None
    """The same as measured, over the captured completions."""
    captured_excess: float | None
    """captured_rate - expected_rate."""
    captured_z: float | None
    """The excess over its standard error, prompt by prompt."""


MOST_PLACES = 64
"""Samples of a prompt that are compared with one another: pairs grow with their square."""


@tool
def find_duplicates(run: Run) -> Measured[Duplicates]:
    """Completions of a prompt that are the same word for word, by place in the group.

    A sharp policy repeats itself too, at all places alike, and about as often as its own log-probs
    say: a second sample equals a first one with the first one's probability. Completions of fewer
    than three words are left out.

    Cannot tell: equal seeds of all samples from a policy without entropy, where no capture holds
    log-probs; seeds that make all groups alike without repeating a completion inside one.
    """
    batches = [b for b in run.rollouts.batches() if len(b)]
    size = _usual_size(batches)
    if size < 2:
        raise NoData("no rollouts with several completions of a prompt")
    if _in_order(batches):
        raise NoData("the rows of a group stand in the order of their text or of their reward")
    steps, codes, long = _codes(batches, size)
    n_groups = int((long.sum(axis=1) > 1).sum())
    if n_groups < FEWEST:
        raise NoData(f"fewer than {FEWEST} groups with completions of {LONG} words or more")
    places = list(combinations(range(min(size, MOST_PLACES)), 2))
    counted = [_pair(codes, long, place) for place in places]
    last_good, first_bad = None, None
    pairs, same, rates = _rates(counted, np.ones(len(steps), bool))
    if rates.max() > 0:
        alike = np.flatnonzero(rates >= rates.max() - 0.1).tolist()
        last_good, first_bad = _dated(steps, [counted[i] for i in alike])
    if first_bad is not None and int((steps >= first_bad).sum()) >= FEWEST:
        pairs, same, rates = _rates(counted, steps >= first_bad)
    worst = int(rates.argmax())
    rest = rates < rates[worst] / 2
    rest_pairs = int(pairs[rest].sum())
    rest_rate = float(same[rest].sum() / rest_pairs) if rest_pairs else None
    alike = np.flatnonzero(rates >= rates[worst] - 0.1).tolist()
    predicted = _captured(run)
    expected, captured = predicted.expected_rate, predicted.captured_rate
    metrics = Duplicates(
        n_groups=n_groups,
        pair_rate=round(float(same.sum() / max(1, pairs.sum())), 6),
        pair_rate_worst=round(float(rates[worst]), 6),
        pair_rate_rest=None if rest_rate is None else round(rest_rate, 6),
        places_alike=len(alike) if rates[worst] > 0 else 0,
        places_share=round(len({p for i in alike for p in places[i]}) / size, 4)
        if rates[worst] > 0
        else 0.0,
        excess_z=_excess(float(rates[worst]), int(pairs[worst]), rest_rate),
        **predicted._asdict(),
        last_good_step=last_good,
        first_bad_step=first_bad,
        from_start=first_bad is not None and last_good is None,
    )
    order = sorted(range(len(places)), key=lambda i: -rates[i])[:15]
    table = Table(
        title="equal completions by the two places in a group",
        columns=("places", "groups", "share equal"),
        rows=tuple(
            (f"{places[i][0] + 1} and {places[i][1] + 1}", int(pairs[i]), round(float(rates[i]), 4))
            for i in order
        ),
        cut_rows=len(places) - len(order),
    )
    a, b = places[worst]
    text = f"{percent(metrics.pair_rate)} of the pairs of completions of a prompt are the same text"
    if metrics.pair_rate_worst > 0:
        text += f"; at places {a + 1} and {b + 1} {percent(metrics.pair_rate_worst)}"
    if expected is not None and captured is not None:
        text += f"; captured log-probs predict {percent(expected)}, and {percent(captured)} are"
    return Measured(metrics, text, tables=(table,), signal="equal completions of a prompt")


def _usual_size(batches: list[RolloutBatch]) -> int:
    sizes = [np.bincount(b.group) for b in batches]
    flat = np.concatenate([s[s > 0] for s in sizes]) if sizes else np.empty(0, int)
    return int(np.bincount(flat).argmax()) if len(flat) else 0


def _codes(batches: list[RolloutBatch], size: int) -> tuple[IntArray, IntArray, BoolArray]:
    """(N,) step of each whole group; (N, size) a number for each text, and long enough."""
    steps, codes, long = [], [], []
    numbers: dict[str, int] = {}
    for batch in batches:
        whole = [rows for rows in batch.members if len(rows) == size]
        code = np.array([numbers.setdefault(text, len(numbers)) for text in batch.completions])
        rows = np.array(whole, np.int64).reshape(-1, size)
        codes.append(code[rows])
        long.append(batch.words[rows] >= LONG)
        steps.append(np.full(len(rows), batch.step))
    return np.concatenate(steps), np.concatenate(codes), np.concatenate(long)


def _pair(codes: IntArray, long: BoolArray, place: tuple[int, int]) -> tuple[BoolArray, BoolArray]:
    """(N,) whether two places of a group hold one text, and whether both are long enough."""
    a, b = place
    usable = long[:, a] & long[:, b]
    return usable & (codes[:, a] == codes[:, b]), usable


def _rates(
    counted: list[tuple[BoolArray, BoolArray]], which: BoolArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Pairs, equal pairs and their share at each pair of places, over some of the groups."""
    pairs = np.array([(usable & which).sum() for _, usable in counted])
    same = np.array([(equal & which).sum() for equal, _ in counted])
    return pairs, same, np.where(pairs >= FEWEST / 2, same / np.maximum(pairs, 1), 0.0)


def _in_order(batches: list[RolloutBatch]) -> bool:
    """Whether rows were sorted inside their groups: then equal ones stand side by side."""
    by_text: list[bool] = []
    by_score: list[bool] = []
    for batch in batches[:LOOKED_AT]:
        score = batch.advantage if batch.advantage is not None else batch.total
        for rows in batch.members:
            texts = [batch.completions[row] for row in rows]
            if len(set(texts)) > 2:
                by_text.append(texts in (sorted(texts), sorted(texts, reverse=True)))
            if score is not None and len(rows) > 3 and len(np.unique(score[rows])) > 1:
                moves = np.diff(score[rows])
                by_score.append(bool((moves >= 0).all() or (moves <= 0).all()))
    return any(len(found) >= 5 and np.mean(found) > 0.9 for found in (by_text, by_score))


def _excess(worst: float, n: int, rest: float | None) -> float:
    if rest is None or n == 0:
        return 0.0
    error = math.sqrt(max(rest * (1 - rest), 1 / n) / n)
    return round((worst - rest) / error, 4)


def _dated(
    steps: IntArray, places: list[tuple[BoolArray, BoolArray]]
) -> tuple[int | None, int | None]:
    """Last good and first bad step, where from one on these places are nearly always the same."""
    asked, of = np.unique(steps, return_inverse=True)
    equal = np.bincount(of, np.sum([e for e, _ in places], axis=0), len(asked))
    n = np.bincount(of, np.sum([u for _, u in places], axis=0), len(asked))
    often = np.where(n > 0, equal / np.maximum(n, 1), 1.0) >= NEARLY
    if not often[-1]:
        return None, None
    at = 0 if often.all() else len(often) - int(np.argmin(often[::-1]))
    return int(asked[at - 1]) if at else None, int(asked[at])


class Predicted(NamedTuple):
    """Equal pairs among captured completions, as the log-probs predict them and as they are."""

    expected_rate: float | None = None
    captured_rate: float | None = None
    captured_excess: float | None = None
    captured_z: float | None = None


def _captured(run: Run) -> Predicted:
    """A pair of samples is equal with the probability of the one: the mean of both predictions."""
    predicted: list[float] = []
    equal: list[float] = []
    prompt: list[int] = []
    place: dict[tuple[int, bytes], int] = {}
    for capture in run.captures:
        logp, ids = capture.numbers("logp_new"), capture.arrays.get("token_id")
        asked, mask = capture.arrays.get("prompt_token_id"), capture.mask("prompt_mask")
        if logp is None or ids is None or asked is None or mask is None:
            continue
        real = completion_end(run, capture).real
        if not logp.shape == ids.shape == real.shape or not np.isfinite(logp[real]).all():
            continue
        chance = np.exp(np.where(real, logp, 0.0).sum(axis=1))
        keys = [p[m].tobytes() for p, m in zip(asked, mask, strict=True)]
        said = [row[m].tobytes() for row, m in zip(ids, real, strict=True)]
        long = real.sum(axis=1) > LONG  # and the stop token
        of_prompt: dict[bytes, list[int]] = {}
        for row in np.flatnonzero(long).tolist():
            of_prompt.setdefault(keys[row], []).append(row)
        for rows in of_prompt.values():
            for a, b in combinations(rows[:MOST_PLACES], 2):
                predicted.append(float(chance[a] + chance[b]) / 2)
                equal.append(float(said[a] == said[b]))
                prompt.append(place.setdefault((capture.step, keys[a]), len(place)))
    if len(place) < FEWEST:
        return Predicted()
    away = np.array(equal) - np.array(predicted)
    spread = math.sqrt(float((np.bincount(prompt, away) ** 2).sum()))
    return Predicted(
        round(float(np.mean(predicted)), 6),
        round(float(np.mean(equal)), 6),
        round(float(away.mean()), 6),
        round(float(away.sum()) / spread, 4) if spread > 0 else 0.0,
    )
