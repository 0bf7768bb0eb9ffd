"""How an answer is written, beside its gold answer: what a parser may stumble over or fall for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from firstbad.tools.answers import EXTRACTORS, LONGEST, loose, normalise
from firstbad.tools.reward.patterns import Row

Form = Callable[[str, str], bool]
"""Of an answer as written, and the gold answer as written."""
_UNIT = re.compile(r"-?\d[\d,]*(?:\.\d+)?\s*(?:%|°|[^\W\d_]|\$|€|£)[^\d]*")
_LEADING_ZERO = re.compile(r"-?0\d")
_TRAILING_ZERO = re.compile(r"\.\d*0(?!\d)")
_THOUSANDS = re.compile(r"\d,\d{3}(?!\d)")
_CUT = 200
"""Characters of an answer within which its form is looked at."""


def _more_than(sign: re.Pattern[str]) -> Form:
    """The sign stands in the answer and not in the gold one."""
    return lambda answer, gold: bool(sign.search(answer)) and not sign.search(gold)


FORMS: dict[str, Form] = {
    "the answer ends in zeros after its point": _more_than(_TRAILING_ZERO),
    "the answer has commas between digits": _more_than(_THOUSANDS),
    "the answer carries a unit": lambda answer, gold: (
        bool(_UNIT.fullmatch(answer.strip())) and not _UNIT.fullmatch(gold.strip())
    ),
    "the answer begins with a zero": lambda answer, gold: bool(_LEADING_ZERO.match(answer.strip())),
    "the answer is negative": lambda answer, gold: answer.strip().startswith(("-", "\u2212")),
    "the answer has a line break in it": lambda answer, gold: "\n" in answer,
    "the answer stands in \\boxed{}": lambda answer, gold: "\\boxed" in answer,
    "the answer has spaces at its ends": lambda answer, gold: answer != answer.strip(),
    "the answer has capital letters that the gold one has not": lambda answer, gold: (
        answer != gold and answer.lower() == gold.lower()
    ),
    "the answer is not written as the gold one": lambda answer, gold: answer != gold,
    "the answer is empty": lambda answer, gold: not answer.strip(),
    "the answer is a part of the gold one": lambda answer, gold: (
        bool(answer.strip()) and _holds(gold, answer) and not _holds(answer, gold)
    ),
    "the gold answer is a part of the answer": lambda answer, gold: (
        bool(gold.strip()) and _holds(answer, gold) and not _holds(gold, answer)
    ),
    "the answer has the gold one's signs in another order": lambda answer, gold: (
        loose(normalise(answer)) != loose(normalise(gold))
        and sorted(loose(normalise(answer))) == sorted(loose(normalise(gold)))
    ),
}
"""Of forms that tell two sets apart equally well the first is named."""


def forms(extractor: str) -> dict[str, Callable[[Row], float]]:
    """Properties of a row, 1 where the answer that the extractor finds is written so, else 0."""
    extract = cache(lambda text: EXTRACTORS[extractor](text))  # once for all forms

    def of(form: Form) -> Callable[[Row], float]:
        def has(row: Row) -> float:
            gold = row[0].gold[row[1]] if row[0].gold else None
            answer = extract(row[0].completions[row[1]][-LONGEST:])
            if answer is None or gold is None:
                return 0.0
            return float(form(answer[:_CUT], gold[:_CUT]))

        return has

    return {name: of(form) for name, form in FORMS.items()}


def _holds(whole: str, part: str) -> bool:
    return normalise(part) in normalise(whole)
