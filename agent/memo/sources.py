"""Which files the evidence was read from: long lists counted, each file with its digest once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from firstbad.agent.memo.words import names
from firstbad.tools.evidence import Evidence, Source
from firstbad.tools.numbers import number

FEW = 3
"""Most files of a folder that are named one by one beside the evidence."""


@dataclass(frozen=True)
class Folder:
    """The files of one folder that were read."""

    name: str
    files: tuple[Source, ...]

    @property
    def title(self) -> str:
        """The folder and how many files of it were read."""
        count = len(self.files)
        return f"`{self.name}` {number(count)} file{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Reads:
    """What one piece of evidence read in one folder."""

    text: str
    files: tuple[Source, ...] = ()
    """Named one by one where they are a part of a long list."""


def folders(evidence: Mapping[str, Evidence]) -> tuple[Folder, ...]:
    """Every file that any evidence was read from, by folder."""
    found = {(s.ref, s.digest): s for e in evidence.values() for s in e.sources}
    return tuple(Folder(name, tuple(files)) for name, files in _by_folder(found.values()))


def reads(found: Evidence, all_files: Sequence[Folder]) -> tuple[Reads, ...]:
    """The files of one piece of evidence, a line a folder."""
    read_at_all = {folder.name: len(folder.files) for folder in all_files}
    lines = []
    for name, files in _by_folder(found.sources):
        total = read_at_all[name]
        if len(files) <= FEW:
            lines.append(Reads(names([source.ref for source in files])))
            continue
        whole = len(files) == total
        part = "all" if whole else f"{number(len(files))} of the"
        text = f"{part} {number(total)} files of `{name}` that are listed under Files"
        lines.append(Reads(text, () if whole else tuple(files)))
    return tuple(lines)


def _by_folder(sources: Iterable[Source]) -> list[tuple[str, list[Source]]]:
    found: dict[str, list[Source]] = {}
    for source in sorted(sources, key=lambda s: s.ref):
        found.setdefault(source.ref.rpartition("/")[0] + "/", []).append(source)
    return [(name if name != "/" else "./", found[name]) for name in sorted(found)]
