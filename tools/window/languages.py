"""In which scripts is a text written, and which of them came up without being asked for?"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from firstbad.tools.run import RolloutBatch

LOOKED_AT = 20_000
"""Characters of a text that are looked at."""
LATIN = "Latin"
SCRIPTS = frozenset(
    (
        "Arabic",
        "Armenian",
        "Bengali",
        "Cyrillic",
        "Devanagari",
        "Ethiopic",
        "Georgian",
        "Gujarati",
        "Gurmukhi",
        "Hangul",
        "Hebrew",
        "Kannada",
        "Khmer",
        "Lao",
        LATIN,
        "Malayalam",
        "Myanmar",
        "Sinhala",
        "Tamil",
        "Telugu",
        "Thai",
        "Tibetan",
    )
)
LANGUAGES = {
    "arabic": "Arabic", "persian": "Arabic", "farsi": "Arabic", "urdu": "Arabic",
    "armenian": "Armenian", "bengali": "Bengali", "bangla": "Bengali",
    "russian": "Cyrillic", "ukrainian": "Cyrillic", "bulgarian": "Cyrillic", "serbian": "Cyrillic",
    "kazakh": "Cyrillic", "mongolian": "Cyrillic", "belarusian": "Cyrillic",
    "hindi": "Devanagari", "marathi": "Devanagari", "nepali": "Devanagari",
    "amharic": "Ethiopic", "georgian": "Georgian", "gujarati": "Gujarati", "punjabi": "Gurmukhi",
    "korean": "Hangul", "hebrew": "Hebrew", "kannada": "Kannada", "khmer": "Khmer", "lao": "Lao",
    "english": LATIN, "french": LATIN, "german": LATIN, "spanish": LATIN, "italian": LATIN,
    "portuguese": LATIN, "turkish": LATIN, "vietnamese": LATIN, "indonesian": LATIN,
    "malayalam": "Malayalam", "burmese": "Myanmar", "sinhala": "Sinhala", "tamil": "Tamil",
    "telugu": "Telugu", "thai": "Thai", "tibetan": "Tibetan",
    "chinese": "Chinese or Japanese", "mandarin": "Chinese or Japanese",
    "japanese": "Chinese or Japanese",
}  # fmt: skip
"""Script of the languages that a prompt may ask for by name."""
_ASKS_FOR = re.compile(
    rf"\b(?:in|into|to) (?:(?!to\b)\w+ )?({'|'.join(LANGUAGES)})\b", re.IGNORECASE
)
"""`in Russian`, `into simplified Chinese`; a Russian novel is no request."""
_ASCII_LETTERS = re.compile("[A-Za-z]")


def letters_by_script(text: str) -> Counter[str]:
    """Letters of a text by script, without Greek and letters of formulas."""
    if text.isascii():
        n = len(_ASCII_LETTERS.findall(text))
        return Counter({LATIN: n} if n else {})
    found = Counter(_script(ch) for ch in text if ch.isalpha())
    del found[""]
    return found


def written_in(text: str, *, least: float = 0.1) -> frozenset[str]:
    """Scripts with two letters and a share of at least `least`; Latin: with half of the letters.

    Latin letters stand in the formulas, code and templates of any language.
    """
    letters = letters_by_script(text[:LOOKED_AT])
    total = letters.total()
    return frozenset(
        script
        for script, n in letters.items()
        if n >= 2 and n >= (0.5 if script == LATIN else least) * total
    )


def asked_by_name(prompt: str) -> frozenset[str]:
    """Scripts of the languages that a prompt names to be answered in, or translated to."""
    named = _ASKS_FOR.findall(prompt[:LOOKED_AT])
    return frozenset(LANGUAGES[name.lower()] for name in named)


def shares_by_script(batches: Iterable[RolloutBatch]) -> tuple[dict[str, float], dict[str, float]]:
    """Share of the completions written in each script, and of those whose prompt is not.

    A prompt that names a language has asked for its script.
    """
    asked: dict[str, frozenset[str]] = {}
    held: Counter[str] = Counter()
    unasked: Counter[str] = Counter()
    n = 0
    for batch in batches:
        for prompt, completion in zip(batch.prompts, batch.completions, strict=True):
            n += 1
            scripts = written_in(completion)
            held.update(scripts)
            if scripts and prompt not in asked:
                asked[prompt] = written_in(prompt, least=0.0) | asked_by_name(prompt)
            unasked.update(scripts - asked.get(prompt, frozenset()))
    return {s: k / n for s, k in held.items()}, {s: unasked[s] / n for s in held}


def grown_script(before: list[RolloutBatch], after: list[RolloutBatch]) -> tuple[str, float, float]:
    """The script that came up most, and the share of the rows that it came up in unasked.

    `(script, share before, share after)`. Where prompts change their language, answers that follow
    them did not come up unasked; where answers keep theirs, no script came up.
    """
    (x, x_unasked), (y, y_unasked) = shares_by_script(before), shares_by_script(after)

    def grown(script: str) -> float:
        more = y[script] - x.get(script, 0.0)
        return min(more, y_unasked[script] - x_unasked.get(script, 0.0))

    top = max(sorted(y), key=grown, default="")
    if not top or grown(top) <= 0:
        return "", 0.0, 0.0
    late = y_unasked[top]
    return top, late - grown(top), late


@lru_cache(maxsize=4096)
def _script(ch: str) -> str:
    """Script of a letter; empty for Greek and the letters of formulas, which stand in any text."""
    if ch.isascii():
        return LATIN
    name = unicodedata.name(ch, "").split()
    first = name[0].capitalize() if name else ""
    if first in ("Hiragana", "Katakana", "Cjk", "Katakana-hiragana"):
        return "Chinese or Japanese"
    return first if first in SCRIPTS else ""
