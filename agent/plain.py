"""Text of others made harmless for a terminal: rollouts, file names, config strings, complaints."""

from __future__ import annotations

import re

_C0_PICTURES = 0x2400
"""First of the pictures that Unicode has for control characters: ESC becomes one visible sign."""

# C0 controls, DEL, C1 controls, direction marks and overrides, invisible characters, line and
# paragraph separators, the byte order mark, lone surrogates, tag characters.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)

_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|nats?|tokens?|words|steps?|seconds|s|times|rows|files?)(?![A-Za-z]))"
)
"""The space between a number and its unit."""


def plain(text: str, *, one_line: bool = False) -> str:
    """The text with everything that could steer a terminal written as visible signs.

    Args:
        text: what somebody else wrote.
        one_line: also write line breaks and tabs as one space each.
    """
    if text.isprintable():  # nearly always, and told faster: nothing harmful is printable
        return text
    if one_line:
        text = re.sub(r"[\r\n\t]+", " ", text)
    return _HARMFUL.sub(_visible, text)


def bound(text: str) -> str:
    """Prose in which no line ends between a number and its unit, or inside an arrow."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text).replace(" -> ", " \N{RIGHTWARDS ARROW} ")


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_C0_PICTURES + code)
    if code == 0x7F:
        return "\u2421"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
