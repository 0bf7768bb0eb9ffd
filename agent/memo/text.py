"""Text for the memo: numbers that stand together, and text of others made harmless.

Rollouts, prompts, config strings, file names and complaints are untrusted. `visible` takes their
control characters away; `markdown`, `code`, `block` and `rich` write them so that they can't become
links, images, headings or HTML.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from firstbad.agent.plain import bound, plain
from firstbad.tools.evidence import Scalar
from firstbad.tools.numbers import number

LONGEST = 2000
"""Longest text in a line of prose or a code span."""

_CODE = re.compile(r"`([^`\n]+)`")
_RISKY = re.compile(r"://|www\.|@|mailto:|<[a-z/!?]", re.IGNORECASE)
"""What a reader's program might take for a link or a tag."""
_MARKUP = re.compile(
    r"[\\*\[\]$`|]"  # always
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # an underscore inside a word is no emphasis
    r"|~(?=~)|(?<=~)~"
    r"|&(?=[#A-Za-z])"
)
_EVIDENCE = re.compile(r"\bE\d+\b")
_OPENS_BLOCK = re.compile(r"^(?:([#>]|[-+=](?=[\s=-]|$))|(\d+)([.)])(?=\s|$))")


class Md(str):
    """Markdown that is already safe; any other text is escaped when it is written."""

    __slots__ = ()


# ---------------------------------------------------------------------------------------- numbers


def column(values: Sequence[float], *, digits: int = 4) -> list[str]:
    """Floats that stand under one another: the same decimals for all, as few as serve them all."""
    sizes = [abs(v) for v in values if v]
    if not sizes:
        return [number(float(v)) for v in values]
    decimals = min(max(digits - 1 - math.floor(math.log10(max(sizes))), 0), 12)
    small = 0.5 * 10.0**-decimals
    if decimals > 8 or max(sizes) >= 1e9 or any(s < small for s in sizes):
        return [number(float(v), digits=digits) for v in values]
    while decimals and all(
        float(f"{v:.{decimals}f}") == float(f"{v:.{decimals - 1}f}") for v in values
    ):
        decimals -= 1
    return [f"{0.0 if round(v, decimals) == 0 else v:,.{decimals}f}" for v in values]


def operands(observed: Scalar, limit: float, *, step: bool = False) -> tuple[str, str]:
    """Both sides of a comparison, with as many digits as it takes to tell them apart."""
    first = (number(observed, step=step), number(limit, step=step))
    if not isinstance(observed, (int, float)) or isinstance(observed, bool) or observed == limit:
        return first
    for digits in range(4, 18):
        pair = number(float(observed), digits=digits), number(float(limit), digits=digits)
        if pair[0] != pair[1]:
            return first if digits == 4 else pair
    return first


# --------------------------------------------------------------------------------- untrusted text


def visible(text: str) -> str:
    """Text whose control, direction and other hidden characters are written out."""
    return plain(text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Visible text with line breaks and runs of spaces as one space."""
    return " ".join(plain(text, one_line=True).split())


@dataclass(frozen=True)
class Cut:
    """A text brought to a length, and in words how much was left out."""

    text: str
    left_out: str = ""


def cut(text: str, limit: int) -> Cut:
    """The first `limit` characters."""
    shown = visible(text)
    if len(shown) <= limit:
        return Cut(shown)
    return Cut(shown[:limit], f"{number(len(shown) - limit)} more characters")


def brief(text: str, limit: int) -> str:
    """One line of at most `limit` characters, ended at a clause or a word, with an ellipsis.

    A name in backticks is told whole or not at all, where there is text before it.
    """
    line = one_line(text)
    if len(line) <= limit:
        return line
    head = line[:limit] + (" " if line[limit] == " " else "")
    opened = head.rfind("`")
    if head.count("`") % 2 and opened > limit // 2:
        head = head[:opened]
    for stop in ("; ", ". ", " "):
        at = head.rfind(stop)
        if at > limit // 2:
            return head[:at].rstrip(" ;,.:(") + " …"
    return head.rstrip() + "…"


# --------------------------------------------------------------------------------------- Markdown


def markdown(text: str) -> Md:
    """One line of prose; pairs of backticks stay code, anything that would be markup is escaped."""
    line = brief(text, LONGEST)
    parts: list[str] = []
    at = 0
    for found in _CODE.finditer(line):
        parts += (_prose(line[at : found.start()]), code(found[1]))
        at = found.end()
    parts.append(_prose(line[at:]))
    return _guarded(_joined(parts))


def _guarded(line: str) -> Md:
    """A line that opens no heading, quote or list."""
    return Md(_OPENS_BLOCK.sub(_defuse, line))


def _defuse(match: re.Match[str]) -> str:
    return f"\\{match[1]}" if match[1] else f"{match[2]}\\{match[3]}"


def _prose(text: str) -> str:
    """Escaped text; words that a reader's program might take for a link or a tag become code."""
    text = bound(text)
    if not _RISKY.search(text):
        return _escaped(text)
    words = re.split(r"([ |]+)", text)
    return _joined([_risky_code(w) if _RISKY.search(w) else _escaped(w) for w in words])


def _risky_code(word: str) -> str:
    """As code, without the punctuation of the sentence around it."""
    core = word.strip("().,;:") or word
    before, _, after = word.partition(core)
    return _escaped(before) + code(core) + _escaped(after)


def _joined(parts: list[str]) -> str:
    """Parts in a row; two code spans are kept apart, or their fences would run together."""
    text = ""
    for part in parts:
        text += " " + part if text.endswith("`") and part.startswith("`") else part
    return text


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda m: "&amp;" if m[0] == "&" else "\\" + m[0], text)


def code(text: str) -> Md:
    """A code span, fenced by more backticks than it holds; fit for a table cell."""
    line = brief(text, LONGEST)
    if "|" in line or not line:  # parsers differ on a pipe in code in a table
        return _guarded(_prose(line))
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return Md(f"{fence}{pad}{line}{pad}{fence}")


def block(text: str) -> Md:
    """A fenced block, with a fence longer than any run of backticks inside."""
    shown = visible(text)
    fence = "`" * max(3, _longest_run(shown) + 1)
    return Md(f"{fence}text\n{shown}\n{fence}")


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


# ------------------------------------------------------------------------------------------- HTML


def rich(text: str, evidence: Mapping[str, object] = {}) -> Markup:
    """One line of prose as HTML; pairs of backticks become code, known evidence ids links."""
    line = brief(text, LONGEST)
    parts: list[Markup] = []
    at = 0
    for found in _CODE.finditer(line):
        parts += (_linked(line[at : found.start()], evidence), code_html(found[1]))
        at = found.end()
    parts.append(_linked(line[at:], evidence))
    return Markup("".join(parts))


def code_html(text: str) -> Markup:
    """A code element."""
    return Markup(f"<code>{escape(brief(text, LONGEST))}</code>")


def _linked(text: str, evidence: Mapping[str, object]) -> Markup:
    def link(match: re.Match[str]) -> str:
        return f'<a href="#{match[0]}">{match[0]}</a>' if match[0] in evidence else match[0]

    return Markup(_EVIDENCE.sub(link, escape(bound(text))))  # no entity reads like an id


# --------------------------------------------------------------------------------------- commands


def tool_command(tool: str, run: str, args: Mapping[str, Scalar]) -> str:
    """The shell command that measures a piece of evidence again."""
    words = ["firstbad", "tools", "run", tool, run]
    for name, value in args.items():
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words += ["--set", f"{name}={text}"]
    return " ".join(shlex.quote(word) for word in words)
