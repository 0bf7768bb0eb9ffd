"""Python files below a path that the user gave: untrusted text, read within limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from stat import S_ISREG

from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.paths import digest, is_text

FILE_BYTES = 512 * 2**10
ALL_BYTES = 4 * 2**20
MAX_FILES = 400
MAX_ENTRIES = 20_000
"""Files and folders that are looked at, whatever their kind."""
MAX_DEPTH = 8
NOT_LOSS_CODE = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


@dataclass(frozen=True)
class CodeFile:
    """One file as it was read."""

    name: str
    """Relative to the path that was given; of a single file its own name."""
    data: bytes


@dataclass(frozen=True)
class Unread:
    """A file or folder that was left out, and why."""

    name: str
    why: str


@dataclass
class Code:
    """The code of `--code`. What is read depends on nothing but the files and their names."""

    path: Path
    """A file or a folder; links in it were followed: the user named it."""
    unread: list[Unread] = field(default_factory=list)
    """Known once `files` were read."""

    @cached_property
    def files(self) -> tuple[CodeFile, ...]:
        """The files, by name, at most ALL_BYTES together."""
        found: list[CodeFile] = []
        left = ALL_BYTES
        for name, path in self._names():
            if len(found) >= MAX_FILES:
                self.unread.append(Unread(name, f"after {MAX_FILES} files no more are read"))
                break
            data = self._read(name, path)
            if data is None:
                continue
            if len(data) > left:
                self.unread.append(
                    Unread(name, f"after {ALL_BYTES / 2**20:.0f} MiB no more are read")
                )
                break
            left -= len(data)
            found.append(CodeFile(name, data))
        return tuple(found)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The files, as what a measurement was read from."""
        return tuple(Source(kind="code", ref=f.name, digest=digest(f.data)) for f in self.files)

    def _names(self) -> Iterator[tuple[str, Path]]:
        if not self.path.is_dir():
            return iter([(self.path.name, self.path)])
        return iter(sorted(self._walk()))

    def _walk(self) -> Iterator[tuple[str, Path]]:
        """Python files below the folder; no link to a folder is followed, no file out of it."""
        folders, seen = [("", self.path, 0)], 0
        while folders:
            prefix, folder, depth = folders.pop()
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                self.unread.append(Unread(prefix.rstrip("/") or ".", "the folder can't be read"))
                continue
            for entry in entries:
                seen += 1
                if seen > MAX_ENTRIES:
                    name = prefix.rstrip("/") or "."
                    self.unread.append(Unread(name, f"after {MAX_ENTRIES} entries no more"))
                    return
                name = prefix + entry.name
                if not is_text(entry.name) or entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if depth >= MAX_DEPTH:
                        self.unread.append(Unread(name, f"more than {MAX_DEPTH} folders deep"))
                    elif entry.name not in NOT_LOSS_CODE and not _is_environment(entry.path):
                        folders.append((f"{name}/", Path(entry.path), depth + 1))
                elif entry.name.endswith(".py"):
                    yield name, Path(entry.path)

    def _read(self, name: str, path: Path) -> bytes | None:
        """The bytes of a regular file inside the path, or None and why."""
        try:
            real = path.resolve()
            inside = self.path if self.path.is_dir() else self.path.parent
            if not real.is_relative_to(inside):
                self.unread.append(Unread(name, "a link that leads out of the path"))
                return None
            about = real.stat()
            if not S_ISREG(about.st_mode):  # a pipe would be waited for
                self.unread.append(Unread(name, "no regular file"))
            elif about.st_size > FILE_BYTES:
                self.unread.append(Unread(name, f"more than {FILE_BYTES // 2**10} KiB"))
            else:
                with real.open("rb") as file:
                    return file.read(FILE_BYTES)
        except (OSError, RuntimeError):
            self.unread.append(Unread(name, "can't be read"))
        return None


def open_code(path: str | Path) -> Code:
    """The code at a path.

    Raises:
        UserError: there is nothing, or no Python file.
    """
    shown = " ".join(str(path).split())
    try:
        real = Path(path).expanduser().resolve(strict=True)
        is_folder = real.is_dir()
    except (OSError, RuntimeError, ValueError):
        raise UserError(f"--code: there is no file or folder `{shown}`") from None
    if not is_folder and (real.suffix != ".py" or not real.is_file()):
        raise UserError(f"--code: `{shown}` is neither a Python file nor a folder")
    code = Code(real)
    if not code.files and not code.unread:
        raise UserError(f"--code: no Python file in `{shown}`")
    return code


def _is_environment(folder: str) -> bool:
    """Whether a folder holds a virtual environment: other people's code, and much of it."""
    return os.path.exists(os.path.join(folder, "pyvenv.cfg"))
