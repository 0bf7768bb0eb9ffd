"""Which number in a file's name is the step, if one is: others name ranks, parts or a run."""

from __future__ import annotations

import re
from collections.abc import Sequence

NUMBER = r"(\d{1,15})(?!\d)"
"""Numbers of more digits are no steps, here and wherever one is read."""
_NOT_A_STEP = re.compile(
    r"(?<![a-z])(?:ranks?|parts?|shards?|workers?|epochs?|nodes?|gpus?|dp|tp|pp|ep|proc(?:ess)?|"
    r"chunks?|splits?|seeds?|actors?|replicas?|servers?|ver(?:sion)?|v)[_.=-]*\d+(?![a-z\d])|"
    r"(?<!\d)\d+[_.-]*of[_.-]*\d+",
    re.I,
)
_AGAIN = re.compile(
    r"(?<![a-z])(?:(?P<redone>attempts?|retry|retries|try|tries|restarts?)|"
    r"(?P<anew>epochs?|phases?|runs?|trials?))[_.=-]*(?P<n>\d{1,15})(?![a-z\d])",
    re.I,
)
"""What is counted above steps: the same step under the next number is another one, or it redone."""
_CALLED_STEP = re.compile(rf"step[^0-9a-z]{{0,3}}{NUMBER}", re.I)
_ALONE = re.compile(r"(?<![a-z\d])(\d{1,15})(?![a-z\d])", re.I)
"""Not part of a word, such as a model's name."""
_ROLLOUTS = re.compile(r"^\d+$|completions?|rollouts?", re.I)


def without_ranks(stem: str) -> str:
    """A file's name without the numbers that it calls a rank, a part, a worker, an epoch, ..."""
    return _NOT_A_STEP.sub("", stem)


def steps_of_names(stems: Sequence[str]) -> list[int | None]:
    """Steps in names that differ only in numbers; None where no one number can be told to be it.

    One that is called a step is it. Else the only number that is called nothing else: of several
    the only one that is not the same in all of the names.
    """
    names = [without_ranks(stem) for stem in stems]
    called = [{int(n) for n in _CALLED_STEP.findall(name)} for name in names]
    if any(called):
        return [steps.pop() if len(steps) == 1 else None for steps in called]
    numbers = [_ALONE.findall(name) for name in names]
    if len({len(each) for each in numbers}) != 1:
        return [None] * len(stems)
    places = list(zip(*numbers, strict=True))
    if len(places) > 1:
        places = [place for place in places if len(set(place)) > 1]
    return [int(n) for n in places[0]] if len(places) == 1 else [None] * len(stems)


def named_for_steps(stem: str) -> bool:
    """Whether a name has a number that may be a step: `12`, `step12`, `rollouts_12_3`."""
    name = without_ranks(stem)
    return _CALLED_STEP.search(name) is not None or (
        _ALONE.search(name) is not None and _ROLLOUTS.search(name) is not None
    )


def counted_above(name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers in a file's path of the epochs, phases or runs it is of, and of the attempts."""
    found = list(_AGAIN.finditer(name))
    anew, redone = (
        tuple(int(m["n"]) for m in found if m[kind] is not None) for kind in ("anew", "redone")
    )
    return anew, redone
