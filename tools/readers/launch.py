"""The command line that launched a run, where a log or the tracker kept it: settings as asked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from firstbad.tools.errors import UserError
from firstbad.tools.paths import Root
from firstbad.tools.readers.config import visible
from firstbad.tools.readers.jsonish import decode, parse_object
from firstbad.tools.run import Config

_LOGS = r"(?:[^/]+/)?[^/]+\.(?:log|out|err)"
_METADATA = r"(?:.*/)?wandb-metadata\.json"
_MAX_BYTES = 4 * 2**20
_HEAD_LINES = 300
"""Lines of a log in which a launcher echoes its command."""
_COMMAND = re.compile(
    r"^(?:[+$#>]+ |\[[^\]]*\] |(?:command|cmd|running|launching|executing) ?: ?)*"
    r"((?:[A-Z_][A-Z0-9_]*=\S+ )*(?:\S*/)?(?:python3?|torchrun|accelerate|deepspeed|trl|swift|uv|"
    r"ray)\b.*)$",
    re.IGNORECASE,
)
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?")
_HYDRA = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)")
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


def read_launch(root: Root) -> Config:
    """Settings of the last command line that was kept; empty where none was.

    Where several were, as after a resume, the last one speaks.
    """
    found = Config()
    for file in root.matching(_LOGS):
        data = root.try_read(file) if file.size <= _MAX_BYTES else None
        for line in (decode(data)[0] if data else "").splitlines()[:_HEAD_LINES]:
            words = _words(line)
            settings = visible(dict(_settings(words))) if words else {}
            if len(settings) > 1:
                found = Config(settings, (root.source(file, "log", data),))
    for file in root.matching(_METADATA):
        data = root.try_read(file, _MAX_BYTES)
        try:
            said = {} if data is None else parse_object(data, file.name)
        except UserError:
            continue
        args = said.get("args")
        if isinstance(args, list) and all(isinstance(word, str) for word in args):
            settings = visible(dict(_settings(args)))
            if len(settings) > 1:
                found = Config(settings, (root.source(file, "config", data),))
    return found


def _words(line: str) -> list[str]:
    """The words of a command; empty where the line is none."""
    match = _COMMAND.match(line.strip())
    if match is None or not ("--" in line or "=" in line):
        return []
    try:
        return shlex.split(match[1])
    except ValueError:
        return []


def _settings(words: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Names with dashes as underscores, and values as numbers, truth values or texts."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if hydra := _HYDRA.fullmatch(word):
            yield hydra[1], _value(hydra[2])
            continue
        flag = _FLAG.fullmatch(word)
        if flag is None:
            continue
        name = flag[1].replace("-", "_")
        if flag[2] is not None:
            yield name, _value(flag[2])
            continue
        given = []
        while (
            at < len(words) and not _FLAG.fullmatch(words[at]) and not _HYDRA.fullmatch(words[at])
        ):
            given.append(_value(words[at]))
            at += 1
        yield name, True if not given else given[0] if len(given) == 1 else given


def _value(text: str) -> object:
    lower = text.strip("'\"").lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower in ("none", "null"):
        return None
    if _NUMBER.fullmatch(lower):
        return float(lower) if re.search(r"[.e]", lower) else int(lower)
    return text.strip("'\"")
