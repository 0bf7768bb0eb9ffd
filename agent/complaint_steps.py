"""Find the step that a complaint names: `step 4100`, `at 4.1k`, `第66步`, `after iteration 50`."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NUMBER = (
    r"(?P<n>\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\s?(?P<k>k(?![a-z])|千|万|w(?![a-z]))?"
    r"(?!\d|\.\d|,\d{3})(?:-?ish)?"
)
_UNIT = r"(?:global[ _]?)?(?:steps?|iter(?:ation)?s?|updates?)"
_ABOUT = r"(?:about\s+|around\s+|roughly\s+|[~≈]\s*|大约\s*|大概\s*)?"
# Words end where letters end: there are no spaces in Chinese, so `\b` would not see them.
_START, _END = r"(?<![a-z])", r"(?![a-z])"

_PATTERNS: tuple[tuple[int, re.Pattern[str]], ...] = (
    # A number that is called a step.
    (0, re.compile(rf"{_START}{_UNIT}\s*(?:no\.?|number|#|=|:)?\s*{_ABOUT}{_NUMBER}{_END}")),
    (0, re.compile(rf"第\s*{_NUMBER}\s*(?:个\s*)?(?:步|轮?迭代|次(?:更新|迭代)|{_UNIT})")),
    (
        0,
        re.compile(
            r"第\s*(?P<c>[零一二两三四五六七八九十百千万]+)\s*(?:步|次(?:更新|迭代)|轮?迭代)"
        ),
    ),
    (0, re.compile(rf"{_NUMBER}(?:st|nd|rd|th)?(?:\s?-\s?\d+)?[- ]?{_UNIT}{_END}(?! ago)")),
    (0, re.compile(rf"{_START}step (?P<one>one){_END}")),
    # A decade of steps; of a span the first is meant, as of a range.
    (
        1,
        re.compile(
            rf"{_START}(?:in|since|around|about|near|by|at|until|before|after) (?:the )?"
            rf"(?P<part>early|mid|late)?[- ]?(?P<decade>\d+0)s{_END}"
        ),
    ),
    (0, re.compile(rf"{_NUMBER}\s*步(?!长|的?时间|都?没|都?不)")),
    # A number after a word of time.
    (
        1,
        re.compile(
            rf"(?:{_START}(?:at|around|about|near|after|by|since|before|until|past|between)"
            rf"|[@~≈在从到])\s*"
            rf"{_ABOUT}{_NUMBER}{_END}(?!\s*(?:%|percent|％))"
        ),
    ),
)
_FROM_THE_START = re.compile(
    rf"{_START}(?:from|since|right at|at) (?:the )?(?:very )?(?:beginning|start|first step)"
    rf"(?: on)?{_END}"
    r"|从(?:一|最)?开始就|一开始就"
)
_PERIOD = re.compile(
    rf"(?:{_START}(?:for|last|past|every|within|over|next|previous|first|of|took|takes?|each)\s+"
    r"(?:the\s+)?(?:about\s+)?|最近|过去|连续|每|前|近|后|了)\s*$"
)
"""What stands before a length of time rather than a step."""
_LEVEL = re.compile(
    rf"{_START}(?:stuck|stays?|flat|constant|is|was|are|remains?|sits?|plateau\w*|saturat\w+"
    r"|capped|value|level)\s*$"
)
"""What stands before `at 0.5`: a level of the signal, not a step."""
_OF_TIME = re.compile(r"(?:after|since|before|until|past)\s")
"""A word of time, as in "plateaus after 50": no level stands after it."""
_WEAKER = re.compile(
    rf"(?:{_START}(?:until|before|up to|resum\w+ (?:from|at)|restart\w* from|checkpoint|ckpt){_END}"
    r"|直到|之前|恢复|续训)[^,.;，。；]{0,12}$"
)
"""What stands before a step at which it was still well."""
_THINGS = re.compile(
    rf"^\s*-?\s*(?:(?:fold|times|tokens?|s|sec|seconds|ms|min|minutes|hours?|h|gpus?|nats?"
    rf"|samples?|prompts?|epochs?"
    rf"|points?|days?|rows?|x|0s|[ap]\.?m){_END}|:\d\d(?!\d)|个|倍|度)"
)
"""What follows a number of something else, or a time of day."""


_TIME_BEFORE = re.compile(
    rf"(?:{_START}(?:at|around|about|near|after|by|since|before|until|past|between|from|and|to"
    rf"|or)|[@~≈])"
    r"\s*$"
)
_PARTS_OF_DECADE = {None: 0, "early": 0, "mid": 5, "late": 7}


def find_step(text: str) -> int | None:
    """The step that the text names, or None; a length of time or a level is none.

    Of a range the first step is meant, and "from the beginning" is step 1.
    """
    found = sorted(_steps(text))
    if found:
        return found[0][2]
    return 1 if _FROM_THE_START.search(text) else None


def _steps(text: str) -> Iterator[tuple[int, int, int]]:
    """Rank, place and step of each mention; the lowest is meant."""
    for rank, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            before, after = text[: match.start()], text[match.end() :]
            step = _step(match.groupdict())
            counted = match[0][:1].isdigit()
            if step is None or (counted and (_PERIOD.search(before) or _length_of_run(match))):
                continue
            level = not _OF_TIME.match(match[0]) and _LEVEL.search(before)
            if rank and (step == 0 or level or _THINGS.match(after)):
                continue
            weaker = _WEAKER.search(before) or (rank and match[0].startswith(("before", "until")))
            yield rank + (2 if weaker else 0), match.start(), step


def _length_of_run(match: re.Match[str]) -> bool:
    """Whether `100 steps` tells how long a run is: no word of time stands before it."""
    plural = match[0].endswith("s") and "-" not in match[0]
    return plural and not _TIME_BEFORE.search(match.string[: match.start()])


def _step(groups: dict[str, str | None]) -> int | None:
    """The step that a match names."""
    if chinese := groups.get("c"):
        return _chinese(chinese)
    if groups.get("one"):
        return 1
    if decade := groups.get("decade"):
        return int(decade) + _PARTS_OF_DECADE[groups.get("part")]
    return _number(groups["n"] or "", groups["k"])


def _number(text: str, unit: str | None) -> int | None:
    """A whole number of steps, or None (0.5 is none; 4.1k is)."""
    digits = text.replace(",", "")
    if len(digits) > 15:
        return None
    value = float(digits) * {None: 1, "k": 1e3, "千": 1e3, "万": 1e4, "w": 1e4}[unit]
    return round(value) if abs(value - round(value)) < 1e-6 else None


def _chinese(text: str) -> int | None:
    """A number written in Chinese characters below 100 million."""
    digits = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"两": 2}
    units = {"十": 10, "百": 100, "千": 1000}
    total = part = digit = 0
    for char in text:
        if char in digits:
            digit = digits[char]
        elif char in units:
            part += (digit or 1) * units[char]
            digit = 0
        else:
            total, part, digit = (total + part + digit) * 10_000, 0, 0
    return total + part + digit
