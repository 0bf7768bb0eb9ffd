"""Files of one root folder: nothing outside it is read, and nothing without a limit."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from stat import S_ISREG

from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.plurals import of_one
from firstbad.tools.run import Note, Run

LIMIT_BYTES = 512 * 2**20
_PIECE_BYTES = 2**18
MAX_DEPTH = 5
MAX_FILES = 200_000
MAX_KINDS = 300
"""Files whose names differ in more than numbers or hashes, of kinds that may hold a run: a run has
tens of them, a home folder or a disk tens of thousands."""
_MAY_HOLD = frozenset(
    (
        *(".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".yaml", ".yml"),
        *(".log", ".out", ".err", ".txt", ".npz", ".safetensors"),
    )
)
_LONGEST_NOTE = 1_000
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Line ends and other controls, and what stands for bytes that are no UTF-8."""
_NUMBER = re.compile(r"[0-9a-f]{8,}|\d+")


def digest(data: bytes) -> str:
    """`sha256:` and the first 16 hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()[:16]


def digest_file(path: Path) -> str:
    """The digest of a file, read in pieces."""
    with path.open("rb", buffering=0) as file:
        hasher = hashlib.sha256()
        while piece := file.read(_PIECE_BYTES):
            hasher.update(piece)
    return "sha256:" + hasher.hexdigest()[:16]


def is_text(name: str) -> bool:
    """Whether a name can be written in a line: in Linux it may be any bytes."""
    return not _UNPRINTABLE.search(name)


@dataclass(frozen=True)
class File:
    """A regular file inside the root."""

    path: Path
    name: str
    """Path relative to the root, with `/`."""
    size: int
    """Bytes."""

    @property
    def stem(self) -> str:
        """File name without its last suffix."""
        return self.path.stem

    @property
    def suffix(self) -> str:
        """Last suffix in lower case, with its dot."""
        return self.path.suffix.lower()

    @property
    def folder(self) -> str:
        """Folder relative to the root, empty for the root itself."""
        return self.name.rpartition("/")[0]


class Root:
    """A folder given by the user, and what may be read below it.

    A file that is refused or cannot be read while many are looked through becomes a note;
    a file that was asked for by name is a `UserError`.
    """

    def __init__(self, path: Path) -> None:
        """Links in the root's own path are followed: the user named it."""
        self.path = path.resolve()
        self.notes: list[Note] = []
        self._sources: dict[str, Source] = {}
        self._run: Run | None = None

    def inside(self, path: Path | str) -> Path:
        """The real path of a file below the root.

        Raises:
            UserError: the path, or a link in it, leads out of the root.
        """
        asked = self.path / path
        try:
            real = asked.resolve()
        except (OSError, RuntimeError):
            raise UserError(f"`{path}` is a link that leads nowhere") from None
        if not real.is_relative_to(self.path):
            raise UserError(f"`{path}` leads out of `{self.path}`: not read")
        return real

    def note(self, code: str, text: str) -> None:
        """Remember something for the user, once; names in it may hold line ends."""
        found = Note(code, of_one(" ".join(text.split()))[:_LONGEST_NOTE])
        if found in self.notes:
            return
        self.notes.append(found)
        if self._run is not None:
            self._run.notes = (*self._run.notes, found)

    def notes_go_to(self, run: Run) -> None:
        """Give a run the notes so far, and those still to come while its files are read."""
        run.notes = (*self.notes, *run.notes)
        self._run = run

    @cached_property
    def files(self) -> tuple[File, ...]:
        """Regular files below the root, by name; at most MAX_DEPTH folders deep.

        Raises:
            UserError: too many for one run; nothing in them was read.
        """
        found: list[File] = []
        kinds: set[str] = set()
        for file in self._walk(self.path, "", MAX_DEPTH):
            found.append(file)
            if file.suffix in _MAY_HOLD:
                kinds.add(_NUMBER.sub("#", file.name.lower()))
            if len(found) > MAX_FILES or len(kinds) > MAX_KINDS:
                raise UserError(
                    f"`{self.path}` holds too much for one run: after {len(found):,} files, "
                    f"{len(kinds):,} of them unlike each other, the rest was not looked at; "
                    "name the run's own folder"
                )
        return tuple(sorted(found, key=lambda file: file.name))

    def matching(self, pattern: str) -> list[File]:
        """Files whose name below the root matches a regular expression as a whole."""
        match = re.compile(pattern).fullmatch
        return [file for file in self.files if match(file.name)]

    def first(self, *names: str) -> File | None:
        """The first of these files that is there."""
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    def read(self, file: File | str, limit: int = LIMIT_BYTES) -> bytes:
        """The bytes of a file.

        Raises:
            UserError: missing, not readable, out of the root, or larger than `limit`.
        """
        if isinstance(file, File):
            name, path = file.name, file.path  # looked at when it was found
        else:
            name, path = file, self.inside(file)
        try:
            about = path.stat()
            if not S_ISREG(about.st_mode):  # a pipe would be waited for
                raise UserError(f"`{name}` is no file")
            size = about.st_size
            if size > limit:
                raise UserError(
                    f"`{name}` has {size / 2**20:,.0f} MiB, more than {limit / 2**20:,.0f} MiB"
                )
            return path.read_bytes()
        except OSError as error:
            raise UserError(f"`{name}` cannot be read: {_reason(error)}") from None

    def try_read(self, file: File | str, limit: int = LIMIT_BYTES) -> bytes | None:
        """The bytes of a file, or None and a note when it cannot be read."""
        try:
            return self.read(file, limit)
        except UserError as error:
            self.note("file_skipped", str(error))
            return None

    def source(self, file: File, kind: str, data: bytes | None = None) -> Source:
        """The record of a file that something was read from; a file is digested once."""
        known = self._sources.get(file.name)
        if known is None:
            try:
                found = digest(data) if data is not None else digest_file(file.path)
            except OSError:  # gone or forbidden by now; that it was asked for stays true
                found = None
            known = self._sources[file.name] = Source(kind=kind, ref=file.name, digest=found)
        return known if known.kind == kind else known.model_copy(update={"kind": kind})

    @cached_property
    def _by_name(self) -> dict[str, File]:
        return {file.name: file for file in self.files}

    def _walk(self, folder: Path, name: str, depth: int) -> Iterator[File]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self.note("folder_skipped", f"`{name or '.'}` cannot be read: {_reason(error)}")
            return
        for entry in entries:
            child = f"{name}/{entry.name}" if name else entry.name
            if not is_text(entry.name):
                self.note("file_refused", f"{child!a} is no name in one line of UTF-8: not read")
                continue
            try:
                path = self.inside(child) if entry.is_symlink() else Path(entry.path)
                if entry.is_dir():
                    # A link to a folder above itself would be walked again and again.
                    if depth > 0 and not (entry.is_symlink() or entry.name == ".git"):
                        yield from self._walk(path, child, depth - 1)
                elif entry.is_file():
                    yield File(path, child, entry.stat().st_size)
            except UserError as error:
                self.note("file_refused", str(error))
            except OSError as error:
                self.note("file_skipped", f"`{child}` cannot be read: {_reason(error)}")


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
