"""Versions where a file states them, and what the logged keys mean in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from firstbad.tools.evidence import Source
from firstbad.tools.known_good import all_met, known_good, known_version
from firstbad.tools.paths import Root
from firstbad.tools.run import Config, Note

# The model card that a trainer writes lists versions; nothing else of a README is read.
_STATED = (
    (r"README\.md", r"^- (TRL|Transformers|Pytorch|Datasets|Tokenizers|PEFT): *(\d[\w.+-]*)"),
    (r"(?:.*/)?requirements\.txt", r"^([A-Za-z0-9][\w.-]*)==(\d[\w.+-]*)"),
)
_CARD_NAMES = {"pytorch": "torch"}


def read_versions(
    root: Root, recorded: Mapping[str, str]
) -> tuple[dict[str, str], tuple[Source, ...]]:
    """Version by name of the package, lower case with dashes, and the files that state them.

    What a recorder saw in the process counts before what files claim.
    """
    versions = {_package(name): version for name, version in recorded.items()}
    sources: list[Source] = []
    for name, pattern in _STATED:
        for file in root.matching(name):
            text = (root.try_read(file, 2**20) or b"").decode("utf-8", "replace")
            found = {
                _package(match[1]): match[2] for match in re.finditer(pattern, text, re.MULTILINE)
            }
            if new := {k: v for k, v in found.items() if k not in versions}:
                versions |= new
                sources.append(root.source(file, "config"))
    return versions, tuple(sources)


def meanings(
    keys: Iterable[str], framework: str, versions: Mapping[str, str], config: Config
) -> Iterator[Note]:
    """What logged keys mean in the version that wrote them.

    Where that is not known, the alternatives of those keys that matter most.
    """
    known = known_version(versions.get(framework), config, framework)
    logged = set(keys)
    by_key: dict[str, list[tuple[bool | None, str, bool]]] = {}
    for each in known_good().meanings:
        if each.package == framework and each.key in logged:
            held = (each.versions.hold(known), all_met(each.when, config.values))
            told = False if False in held else None if None in held else True
            by_key.setdefault(each.key, []).append((told, each.means, each.tell_if_unknown))
    for key, entries in by_key.items():
        apply = [means for held, means, _ in entries if held]
        open_ = dict.fromkeys(means for held, means, tell in entries if held is None and tell)
        if apply or len(open_) == 1:
            yield Note("meaning", f"`{key}`: {'; '.join(apply or open_)}")
        elif open_:
            either = " or ".join(open_)
            yield Note("meaning", f"`{key}`: the version is not stated, so either {either}")


def _package(name: str) -> str:
    plain = name.lower().replace("_", "-")
    return _CARD_NAMES.get(plain, plain)
