"""Plain extractors and a plain normaliser: an independent judge of short answers."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Literal

import numpy as np

from firstbad.tools.run import RolloutBatch

Extractor = Callable[[str], str | None]

NEARLY = 0.15
"""Difference of likeness to the gold answers below which two extractors look alike."""
LONGEST = 20_000
"""Characters of a completion that are looked at: its end, where answers stand."""
# Completions may be made to be slow: no pattern looks for its end from each place where it begins.
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_STRICT = re.compile(r"</think>\s*<answer>", re.IGNORECASE)
_OPEN, _CLOSE = "<think>", "</answer>"
_HASHES = re.compile(r"####\s*(.+)")
_SAID = re.compile(r"(?:final answer|answer)\s*(?:is(?:\s*:)?|:|=)\s*(.+)", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def _tags(text: str) -> Iterator[str]:
    """What stands between an opening tag and the next closing one."""
    begin = -1
    for mark in _TAG.finditer(text):
        if not mark[1]:
            begin = mark.end() if begin < 0 else begin
        elif begin >= 0:
            yield text[begin : mark.start()]
            begin = -1


def _tag(text: str) -> str | None:
    return next(iter(deque(_tags(text), maxlen=1)), None)


def _first_tag(text: str) -> str | None:
    return next(_tags(text), None)


def _strict(text: str) -> str | None:
    """The answer of a text that is thoughts and an answer, each in its tags, and nothing else."""
    text = text.strip()
    low = text.lower()
    between = _STRICT.search(text, len(_OPEN))
    if not (between and low.startswith(_OPEN) and low.endswith(_CLOSE)):
        return None
    answer = text[between.end() : -len(_CLOSE)]
    return answer if "<answer>" not in answer.lower() else None


def _boxed(text: str) -> str | None:
    r"""Contents of the last balanced `\boxed{...}`."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for i in range(begin - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[begin:i]
    return None


def _hashes(text: str) -> str | None:
    found = _HASHES.findall(text)
    return found[-1] if found else None


def _said(text: str) -> str | None:
    found = _SAID.findall(text)
    return found[-1].rstrip(". ") if found else None


def _last_number(text: str) -> str | None:
    found = _NUMBER.findall(text)
    return found[-1] if found else None


def _last_line(text: str) -> str | None:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def _whole(text: str) -> str | None:
    return text


# Name -> extractor, in the order in which ties are decided.
EXTRACTORS: dict[str, Extractor] = {
    "last <answer> tag": _tag,
    "first <answer> tag": _first_tag,
    "strict <think> <answer> form": _strict,
    "last \\boxed{}": _boxed,
    "after ####": _hashes,
    "after `answer is`": _said,
    "last line": _last_line,
    "last number": _last_number,
    "whole text": _whole,
}

_WRAPPING = re.compile(r"^\\(?:text|mathrm|mathbf)\{(.*)\}$", re.DOTALL)


@lru_cache(maxsize=1 << 16)
def normalise(text: str) -> str:
    """Lower case, single spaces, no outer quotes, dollars or final stop; numbers in plain form."""
    value = " ".join(text.split()).strip("$ \"'`").rstrip(".").strip().lower()
    wrapped = _WRAPPING.match(value)
    if wrapped:
        value = wrapped[1].strip()
    if _NUMBER.fullmatch(value):
        value = value.replace(",", "")
        if "." in value:
            value = value.rstrip("0").rstrip(".")
        value = "0" if value == "-0" else value
    return value


_WORD = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?|\d+|[^\W\d_]+")


def words_of(text: str) -> list[str]:
    """Words and numbers of a normalised answer."""
    return _WORD.findall(text)


@lru_cache(maxsize=1 << 16)
def loose(text: str) -> str:
    """Words and numbers alone: how an answer reads whatever its commas, brackets and spaces.

    A number keeps its sign and its point.
    """
    return "".join(words_of(text))


Reading = Literal["plain", "loose", "number"]
READINGS: tuple[Reading, ...] = ("plain", "loose", "number")
"""Ways of comparing, in the order in which ties are decided."""


def agree(answer: str | None, gold: str, reading: Reading = "plain") -> bool:
    """Whether an extracted answer is the gold one.

    `plain`: after normalisation; `loose`: words and numbers are the same; `number`: where the gold
    answer is a number, the only one in the answer is the same, whatever words stand beside it.
    """
    if answer is None:
        return False
    wanted = normalise(gold)
    if answer == wanted or reading == "plain":
        return answer == wanted
    if reading == "loose":
        return loose(answer) == loose(wanted) != ""
    numbers = _NUMBER.findall(answer)
    alone = len(numbers) == 1 and _NUMBER.fullmatch(wanted) is not None
    return alone and normalise(numbers[0]) == wanted


@lru_cache(maxsize=1 << 18)
def extract(extractor: str, completion: str) -> str | None:
    """Normalised answer by the extractor of that name, or None when there is none."""
    found = EXTRACTORS[extractor](completion[-LONGEST:])
    return normalise(found) if found is not None else None


def likely_extractor(batches: list[RolloutBatch]) -> str:
    """The extractor whose answers look most like gold answers, by their number of words or length.

    Length is that of words and numbers alone: `1 3 5` and `135` look alike. It must find an answer
    in half of the completions. Looks, not agreement: the gold answers are on trial here. Of those
    that look nearly alike the most specific one is taken.
    """
    value: dict[str, float] = {}
    for name in EXTRACTORS:
        likeness, asked = [], 0
        for batch in batches[:5]:
            for gold, completion in zip(batch.gold or (), batch.completions, strict=True):
                if gold is None:
                    continue
                answer = extract(name, completion)
                asked += 1
                if answer is not None:
                    likeness.append(1.0 / (1.0 + _gap(answer, normalise(gold))))
        found = len(likeness) >= asked / 2 and likeness
        value[name] = float(np.mean(likeness)) if found else 0.0
    best = max(value.values())
    return next(name for name, found in value.items() if found >= best - NEARLY)


def _gap(answer: str, gold: str) -> int:
    """Words, or else characters of words and numbers, by which two answers differ in length."""
    return min(
        abs(len(answer.split()) - len(gold.split())), abs(len(loose(answer)) - len(loose(gold)))
    )
