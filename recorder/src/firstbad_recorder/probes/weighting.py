"""Which denominator a loss has, told by the weight that a token gets in batches of other shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

from firstbad_recorder.probes.loss_input import Bench, Row, near

SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((4, 4), 8),
    ((4, 4, 4, 4), 8),  # more rows
    ((8, 8), 8),  # more tokens
    ((4, 4), 16),  # more padding
    ((2, 6), 8),  # unequal lengths
    ((4, 4, 0, 0), 8),  # rows without a trained token
    ((3, 3), 3),  # no padding
)
"""Batches that are tried: trained tokens of each row, and places in a row."""

Weights = Callable[[Sequence[int], int], list[float]]


def _rows(n: Sequence[int]) -> int:
    return sum(k > 0 for k in n)


WEIGHTS: dict[str, Weights] = {
    "token_mean": lambda n, width: [1 / sum(n)] * len(n),
    "row_mean_of_token_mean": lambda n, width: [1 / (len(n) * max(k, 1)) for k in n],
    "row_mean_of_token_sum": lambda n, width: [1 / len(n)] * len(n),
    "token_sum": lambda n, width: [1.0] * len(n),
    "place_mean": lambda n, width: [1 / (len(n) * width)] * len(n),
    "row_sum_of_token_mean": lambda n, width: [1 / max(k, 1) for k in n],
    "row_sum_over_width": lambda n, width: [1 / width] * len(n),
    "row_mean_over_longest": lambda n, width: [1 / (len(n) * max(n))] * len(n),
    "trained_row_mean_of_token_mean": lambda n, width: [1 / (_rows(n) * max(k, 1)) for k in n],
    "trained_row_mean_of_token_sum": lambda n, width: [1 / _rows(n)] * len(n),
}
"""Weight of a trained token of each row, by the name of the reduction."""

COUNTS_MORE = {
    "token_mean": "every token of the batch alike: long rows count more than short ones",
    "row_mean_of_token_mean": "every row alike: a token of a short row counts more",
    "row_mean_of_token_sum": "rows by their length: a long row counts more",
    "token_sum": "every token alike, and a batch of more tokens more than one of fewer",
    "place_mean": "every token alike, less the more padding the batch has",
    "row_sum_of_token_mean": "every row alike, and a batch of more rows more than one of fewer",
    "row_sum_over_width": "every token alike, less the longer the longest row of the batch is",
    "row_mean_over_longest": "every token alike, less the longer the longest row of the batch is",
    "trained_row_mean_of_token_mean": (
        "every row with a trained token alike: a token of a short row counts more"
    ),
    "trained_row_mean_of_token_sum": "rows by their length, of those with a trained token",
}
"""What a reduction makes count more."""


def weighting(
    bench: Bench, gradient: Callable[[Bench, tuple[int, ...], int], list[list[float]]]
) -> dict[str, Any]:
    """Reduction of one term of the loss.

    Args:
        bench: The loss function.
        gradient: (R, T) gradient of the term in a batch of these lengths and this width.

    Returns:
        `name` (of `WEIGHTS`; None: none of them, or the term has no gradient), `factor` (weight of
        a token over that of the plain reduction), `constant` (its inverse, for a sum over tokens or
        a row mean of sums that is divided by a number), `masked_share` (largest weight at a place
        that is not trained, over that of a trained one), `counts_more`, `weights` (a list of
        lengths, width and measured weights).
    """
    tried = []
    masked = 0.0
    for lengths, width in SHAPES:
        found = gradient(bench, lengths, width)
        own = [max((abs(g) for g in row[:k]), default=0.0) for row, k in zip(found, lengths)]
        rest = [abs(g) for row, k in zip(found, lengths) for g in row[k:]]
        top = max(own)
        if not math.isfinite(top) or not all(map(math.isfinite, rest)):
            return {"name": None, "weights": [], "finite": False}
        masked = max(masked, max(rest, default=0.0) / top if top else 0.0)
        tried.append((lengths, width, own))
    found_weights: list[dict[str, object]] = [
        {"lengths": list(n), "width": width, "weights": own} for n, width, own in tried
    ]
    answer: dict[str, Any] = {"name": None, "masked_share": masked, "weights": found_weights}
    if not any(own[0] for *_, own in tried):
        return answer
    for name, of in WEIGHTS.items():
        shares = [
            own / expected
            for n, width, weights in tried
            for k, own, expected in zip(n, weights, of(n, width))
            if k
        ]
        if all(near(s, shares[0]) for s in shares) and shares[0]:
            answer |= {"name": name, "factor": shares[0], "counts_more": COUNTS_MORE[name]}
            if name in ("token_sum", "row_mean_of_token_sum") and not near(shares[0], 1.0):
                answer["constant"] = 1 / shares[0]
            break
    return answer


def policy_gradient(bench: Bench, lengths: tuple[int, ...], width: int) -> list[list[float]]:
    """Part of the gradient that an advantage of 1 makes, at ratio 1."""
    return _difference(bench, [Row(n) for n in lengths], [Row(n, 0.0) for n in lengths], width)


def kl_gradient(bench: Bench, lengths: tuple[int, ...], width: int) -> list[list[float]]:
    """Part that a reference one nat above makes, without advantage."""
    return bench([Row(n, 0.0, ref_above=1.0) for n in lengths], width).gradient


def _difference(
    bench: Bench, one: Sequence[Row], other: Sequence[Row], width: int
) -> list[list[float]]:
    a, b = bench(one, width).gradient, bench(other, width).gradient
    return [[x - y for x, y in zip(p, q)] for p, q in zip(a, b)]
