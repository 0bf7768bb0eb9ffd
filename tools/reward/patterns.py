"""Do plain properties of the text separate one set of rows from another?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from firstbad.tools.run import BoolArray, FloatArray, RolloutBatch

Row = tuple[RolloutBatch, int]

PURE = 0.95
FEWEST = 15


@dataclass(frozen=True)
class Pattern:
    """A property and a threshold that divide the two sets."""

    text: str
    purity: float
    """Mean of the two sets' shares on their own side; 0.5 by chance."""


def _gold_words(row: Row) -> float:
    gold = row[0].gold[row[1]] if row[0].gold else None
    return float(len((gold or "").split()))


def _gold_characters(row: Row) -> float:
    gold = row[0].gold[row[1]] if row[0].gold else None
    return float(len(gold or ""))


def _words(row: Row) -> float:
    return float(len(row[0].completions[row[1]].split()))


def _lines(row: Row) -> float:
    return float(row[0].completions[row[1]].strip().count("\n"))


def _prompt_words(row: Row) -> float:
    return float(len(row[0].prompts[row[1]].split()))


def _place(row: Row) -> float:
    return float(row[1])


PROPERTIES: dict[str, Callable[[Row], float]] = {
    "words of the gold answer": _gold_words,
    "characters of the gold answer": _gold_characters,
    "words of the completion": _words,
    "line breaks of the completion": _lines,
    "words of the prompt": _prompt_words,
    "place in the batch": _place,
}


def explain_rows(
    rows: Sequence[Row],
    marked: BoolArray,
    others: BoolArray,
    flags: Mapping[str, Callable[[Row], float]] | None = None,
) -> Pattern | None:
    """The property whose threshold separates marked rows from the others, or None.

    Needs 15 rows on each side and a purity of 95 %. `flags` are further properties, 0 or 1.
    """
    a, b = np.flatnonzero(marked).tolist(), np.flatnonzero(others).tolist()
    if len(a) < FEWEST or len(b) < FEWEST:
        return None
    a, b = a[:: max(1, len(a) // 2000)], b[:: max(1, len(b) // 2000)]
    most = int((2 - 2 * PURE) * len(a) + 1e-9)  # marked rows that may lack a flag
    best: Pattern | None = None
    for name, measure in {**(flags or {}), **PROPERTIES}.items():
        if name not in PROPERTIES:
            without = (i for i in a if not measure(rows[i]))
            if sum(1 for _ in islice(without, most + 1)) > most:
                continue  # whatever the others are
        x = np.array([measure(rows[i]) for i in a])
        y = np.array([measure(rows[i]) for i in b])
        if name in PROPERTIES:
            purity, text = _threshold(x, y, name)
        else:
            purity, text = float(x.mean() + 1 - y.mean()) / 2, name
        if purity >= PURE and (best is None or purity > best.purity + 1e-9):
            best = Pattern(text, purity)
    return best


def _threshold(x: FloatArray, y: FloatArray, name: str) -> tuple[float, str]:
    cuts = np.unique(np.concatenate([x, y]))
    if len(cuts) < 2:
        return 0.5, ""
    x_above = (x[:, None] >= cuts[None, 1:]).mean(axis=0)
    y_above = (y[:, None] >= cuts[None, 1:]).mean(axis=0)
    above = (x_above + 1 - y_above) / 2
    k = int(np.argmax(np.maximum(above, 1 - above)))
    if above[k] >= 0.5:
        return float(above[k]), f"{name} at least {cuts[k + 1]:g}"
    return float(1 - above[k]), f"{name} below {cuts[k + 1]:g}"
