"""Levels that a complaint names, and what is no move: `from the 30s to the 20s`, `is at 12 %`."""

from __future__ import annotations

import re

_NUMBER = (
    r"(?:(?:the |about |around |low |mid |high |early |late |[~≈]){0,3}[- ]?)"
    r"(\d+(?:\.\d+)?)(?:s\b)?\s?(%|percent)?"
)
_FROM_TO = re.compile(rf"(?<![\d.]){_NUMBER}\s*(?:\bto\b|->|→|到)\s*{_NUMBER}")
_MOVED = re.compile(
    r"\b(?:went|goes|gone|going|moved|moves|changed|changes|is down|is up|fell|rose|dropped"
    r"|jumps|jumped)"
    r"\s+(?:\w+\s+)?(?:from\s*)?$|(?:从)$"
)
_UP = r"(?:grow|ris|increas|climb)\w*|go(?:es)? (?:up|(?:any )?higher)"
_DOWN = r"(?:drop|fall|decreas|declin|collaps|shrink)\w*|go(?:es)? down"
_NOT = r"\b(?:not|n't|never|no longer|won't|will not|can't|cannot|hardly|barely)\s+(?:\w+\s+)?"
_NOT_UP = re.compile(rf"{_NOT}(?:{_UP})(?![a-z])|\bno (?:rise|gain|increase)\b")
_NOT_DOWN = re.compile(rf"{_NOT}(?:{_DOWN})(?![a-z])|\bno (?:drop|fall|decrease)\b")
_INSTEAD = re.compile(
    r"\b(?:instead of|rather than|as opposed to)\b(?:(?!\band\b).)*|(?:而不是|而非)[^,，。]*"
)
"""What is said not to be so: "goes down instead of up"."""
_BELOW = re.compile(r"\bjump\w* (?:below|under)\b")

_SETTING = re.compile(
    r"\b(?:with|at) (?:(?:this|the same|that|a|the) )?(?:learning rate|lr|kl (?:loss|penalty))"
    r"(?: of)?(?: [\d.e-]*\d)?|\bno kl (?:term|penalty|loss)"
)
"""What was set, and does not move."""
PROCESS = (
    r"(?:run|training|train|job|process|script|program|trainer|worker|node|rank(?: \d+)?|model"
    r"|policy|grpo|ppo|rl|everything|it|vllm|sglang|ray|engine|actor|gpus?)s?"
)
"""What ends, blows up or hangs where no signal is spoken of."""
AUX = (
    r"(?:(?:has|have|had|just|then|suddenly|always|often|simply|again|is|was|got|gets|keeps?|been"
    r"|also|all|randomly|silently|even|never recovered and) )*"
)
"""What may stand between it and its verb; nothing that denies it."""
DIES = (
    r"(?:crash(?:es|ed|ing)?|dies|died|dead|dying|kill(?:s|ed)(?! (?:my|our|the|its|all))"
    r"|abort(?:s|ed)|exit(?:s|ed)"
    r"|terminat(?:es|ed)|segfault\w*|oom(?:s|ed|'?d)?|(?:ended|stopped|quit) (?:early|by itself"
    r"|on its own|with (?:an? )?\w*(?:error|exception))|(?:throws?|threw|rais(?:es|ed)) an?"
    r"(?: \w+)? ?\w*(?:error|exception))"
)
BLOWS_UP = r"(?:bl(?:ows?|ew|own|owing) up|explod\w+|diverg(?:es?|ed|ing)(?! from))"
_OF_RUN = re.compile(rf"\b{PROCESS} {AUX}(?:{DIES}|{BLOWS_UP}|collaps\w+)")

LEAD = 40
"""Characters before "from A to B" in which the word that something moved is looked for."""

LEVEL = re.compile(
    r"\b(?:at|about|around)\s+[-−~]?(?:\d*\.\d*[1-9]|\d+\s?%)"  # "at 66" may be a step
    r"|\b(?:is|are|was|were|sits?|stands?|averages?|starts?)\s+"
    r"(?:(?:at|about|around|only|roughly|still|over"
    r"|under)\s+)*[-−~]?(?!0(?:\.0+)?(?![\d.]))(?!\d+(?:st|nd|rd|th)\b)\d[\d.]*"
    r"|\b(?:went|goes|gone) to \d|\b(?:is|are) (?:still )?not (?:0|zero)\b|\bnear 0\b"
)
"""A signal that is said to be at a level: `KL is about 30`, `accuracy at 12%`."""


def plainly(clause: str) -> str:
    """The clause with moves in plain words: what is denied is no move, and "from A to B" is one.

    "does not grow" is a plateau, "did not fall" is fine, "went from 70 to 20" fell. Numbers without
    a word that says that they moved may be steps and stay as they are.
    """
    clause = _INSTEAD.sub(" ", clause)
    clause = _NOT_DOWN.sub(" fine ", _NOT_UP.sub(" plateau ", clause))
    clause = _SETTING.sub(" ", clause)
    clause = _BELOW.sub("below", clause)
    for match in _FROM_TO.finditer(clause):
        before, unit, after, unit_after = match.groups()
        lead = clause[: match.start()]
        said = _MOVED.search(lead[-LEAD:]) or unit or unit_after
        if said and float(before) != float(after):
            move = "fell" if float(after) < float(before) else "rose"
            return f"{lead} {move} {clause[match.end() :]}"
    return clause


_DENIES = re.compile(r"(?:\bnot|n't|\bnever|\bno longer)\s+(?:(?:so|that|too|very)\s+)?$")


def is_denied(clause: str, start: int) -> bool:
    """Whether the word that begins there is denied: "down, not up"; "did not spike"."""
    return _DENIES.search(clause[:start]) is not None


def without_run(clause: str) -> str:
    """The clause without what it says of the run as a whole: "KL grows and the run dies"."""
    return _OF_RUN.sub(" ", clause)
