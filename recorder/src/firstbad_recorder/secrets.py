"""Settings without what may be a secret, by its name or by its look.

Numbers and flags stay, as do names of columns and of special tokens: what remains has to tell how a
run was set up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(
    r"key|token(?!i[sz])|secret|pass|pwd|credential|auth(?!or(?!i))|cookie|private|proxy|bearer"
    r"|_pat$|^pat$",
    re.I,
)
_HARMLESS = re.compile(
    r"(answer|audio|fn|image|label|messages|model|prompt|response|reward|source|teacher|thinking"
    r"|tools|video)_keys?(?![a-z])"
    r"|(?<![a-z])(bos|cls|eos|image|mask|pad|sep|special|stop|unk)_tokens?(?![a-z])"
    r"|bypass|keyword",
    re.I,
)
"""Parts of names of which a text says which column, or which special token."""
_EVEN_AS_NUMBER = re.compile(r"secret|passw|pwd", re.I)
_LOOK = re.compile(
    r"\b(?:hf|ghp|gho|ghs|ghu|ghr|github_pat|glpat|sk|pk|xox[abeprs])[-_][\w-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)|(?<=bearer )[\w.~+/=-]{8,}",
    re.I,
)
HIDDEN = "<hidden>"
"""In a text, in the place of what looks like a secret."""


def is_secret(name: str) -> bool:
    """Whether what stands under a name may be a secret."""
    return bool(_NAME.search(_HARMLESS.sub("", name)))


def without_secrets(settings: Mapping[Any, Any]) -> dict[str, Any]:
    """Settings, however deep they are nested, without what may be a secret."""
    return _of(settings, hidden=False, depth=20)


def _of(settings: Mapping[Any, Any], *, hidden: bool, depth: int) -> dict[str, Any]:
    found = {}
    for key, value in settings.items():
        name = str(key)
        below = hidden or is_secret(name)
        if not _left_out(name, value, hidden=below):
            found[name] = _open(value, hidden=below, depth=depth)
    return found


def _left_out(name: str, value: Any, *, hidden: bool) -> bool:
    """Whether a value goes without a trace; of a container only what is in it may."""
    if value is None or isinstance(value, (bool, Mapping, list, tuple)):
        return False
    if isinstance(value, (int, float)):
        return hidden and bool(_EVEN_AS_NUMBER.search(name))
    return hidden


def _open(value: Any, *, hidden: bool, depth: int) -> Any:
    if depth and isinstance(value, Mapping):
        return _of(value, hidden=hidden, depth=depth - 1)
    if depth and isinstance(value, (list, tuple)):
        kept = [item for item in value if not _left_out("", item, hidden=hidden)]
        return [_open(item, hidden=hidden, depth=depth - 1) for item in kept]
    return _LOOK.sub(HIDDEN, value) if isinstance(value, str) else value
