"""Which files the evidence was read from: what each piece read, and every file with its digest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firstbad.agent.memo.words import names
from firstbad.tools.evidence import Evidence, Source
from firstbad.tools.numbers import number


def files_of(evidence: Mapping[str, Evidence]) -> tuple[Source, ...]:
    """Every file, or list of files, that any evidence was read from, each once, by name."""
    found = {s: None for e in evidence.values() for s in e.sources}
    return tuple(sorted(found, key=lambda s: (s.ref, s.last or "", s.files, s.digest or "")))


def reads(sources: Iterable[Source]) -> str:
    """The files of one piece of evidence, in a line; empty without any."""
    by_name = sorted(sources, key=lambda s: s.ref)
    one_by_one = [s.ref for s in by_name if s.last is None]
    several = [described(s) for s in by_name if s.last is not None]
    return "; ".join([*several, *([names(one_by_one)] if one_by_one else [])])


def described(source: Source) -> str:
    """A file by its name; of many how many they are, the first and the last."""
    if source.last is None:
        return f"`{source.ref}`"
    return f"{number(source.files)} files, `{source.ref}` to `{source.last}`"
