"""Every pattern over every file, within limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firstbad.tools.code.files import Code, Unread
from firstbad.tools.code.finding import Found, Pattern
from firstbad.tools.code.log_of_softmax import LOG_OF_SOFTMAX
from firstbad.tools.code.low_precision import LOW_PRECISION
from firstbad.tools.code.ratios import LOG_OF_SUM, OVERFLOW, TIGHT_LIMIT
from firstbad.tools.code.sentinels import SENTINELS
from firstbad.tools.code.spread import BARE_DIVISOR, WRONG_AXIS
from firstbad.tools.code.syntax import MOST_STEPS, Module, TooMuch, parse
from firstbad.tools.code.unequal_means import UNEQUAL_MEANS

PATTERNS: Sequence[Pattern] = (
    OVERFLOW,
    TIGHT_LIMIT,
    LOG_OF_SUM,
    LOG_OF_SOFTMAX,
    LOW_PRECISION,
    SENTINELS,
    UNEQUAL_MEANS,
    WRONG_AXIS,
    BARE_DIVISOR,
)

MOST_ODD = 20
"""Expressions of a file that one pattern may stumble over and still go on."""
ALL_STEPS = 2_000_000
"""Nodes that are looked at in all files together."""


@dataclass(frozen=True)
class Place:
    """One finding, as text."""

    file: str
    line: int
    pattern: str
    cause: str
    code: str
    """The expression as written."""
    why: str
    shown: str


@dataclass(frozen=True)
class Looked:
    """What a look at code found, and what was left out."""

    places: tuple[Place, ...]
    n_files: int
    n_lines: int
    unread: tuple[Unread, ...]


def look(code: Code) -> Looked:
    """Look for every pattern in every file.

    A file that is no Python, or whose names can't be followed within the limit, is left out whole;
    of an expression that can't be followed only what it holds.
    """
    places: list[Place] = []
    unread: list[Unread] = []
    n_files = n_lines = used = 0
    for file in code.files:
        if used > ALL_STEPS:
            unread.append(Unread(file.name, "too much in the files before it"))
            continue
        try:
            module = parse(file)
            used += module.n_nodes + MOST_STEPS  # until it is known
            found = look_in(module)
            used -= module.left
        except SyntaxError as error:
            line = f", line {error.lineno}" if error.lineno else ""
            unread.append(Unread(file.name, f"no Python that can be parsed{line}"))
        except RecursionError:
            unread.append(Unread(file.name, "nested too deeply to be followed"))
        except TooMuch:
            unread.append(Unread(file.name, "too much in it to be followed"))
        else:
            n_files += 1
            n_lines += module.text.count("\n") + 1
            places += found
            unread += [Unread(file.name, why) for why in module.odd.values()]
    return Looked(tuple(places), n_files, n_lines, (*code.unread, *unread))


def look_in(module: Module) -> list[Place]:
    """The findings of one file, by line, each place once per pattern."""
    found: dict[tuple[int, int, str], Place] = {}
    for pattern in PATTERNS:
        for _ in range(MOST_ODD):
            module.at = None
            try:
                for each in pattern.find(module):
                    place = _place(module, pattern, each)
                    found.setdefault((place.line, each.node.col_offset, pattern.name), place)
                break
            except TooMuch:
                raise
            except Exception as error:  # of code that nobody thought of: again without it
                kind, at = type(error).__name__, module.at
                if at is None or at in module.odd:
                    module.odd[module.tree] = f"`{pattern.name}` can't be looked for ({kind})"
                    break
                where = f"an expression in line {at.lineno}"
                module.odd[at] = f"{where} can't be followed ({kind})"
    return [found[key] for key in sorted(found)]


def _place(module: Module, pattern: Pattern, found: Found) -> Place:
    return Place(
        module.name,
        found.node.lineno,
        pattern.name,
        found.cause,
        module.written(found.node),
        found.why,
        found.shown,
    )
