"""Long lists of files that evidence was read from, each as one source: an incident stays small.

A run writes a file of rollouts, or a folder, per step, and most measurements read them all. What
an incident keeps of such a list is how many files it had, the first and the last, and one digest
over the name and digest of each, so that a changed, missing or added file still shows when it is
made again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from firstbad.tools.evidence import Source
from firstbad.tools.paths import digest

FEW = 12
"""Most files of one folder and kind that are named one by one.

Folders that differ by a number, such as one a step, count as one folder."""


def bounded(sources: Sequence[Source]) -> tuple[Source, ...]:
    """The sources, those of one folder and kind as one where they are more than a few."""
    alike: dict[tuple[str, str], list[Source]] = {}
    for source in sources:
        alike.setdefault((source.kind, _folder(source.ref.rpartition("/")[0])), []).append(source)
    found: list[Source] = []
    for (kind, _), files in alike.items():
        found += files if len(files) <= FEW else [_as_one(kind, files)]
    return tuple(found)


@lru_cache(maxsize=1 << 10)
def _folder(name: str) -> str:
    """The folder without what tells it from those of other steps."""
    return re.sub(r"\d+", "0", name)


def _as_one(kind: str, files: Sequence[Source]) -> Source:
    by_name = sorted(files, key=lambda source: source.ref)
    lines = "".join(f"{source.ref}\0{source.digest}\0" for source in by_name)
    return Source(
        kind=kind,
        ref=by_name[0].ref,
        last=by_name[-1].ref,
        files=len(by_name),
        digest=digest(lines.encode("utf-8", "surrogateescape")),
    )
