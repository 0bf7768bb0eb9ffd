"""Ask a command of the user's for scores: rows in on standard input, scores out on its output.

It runs in a process group of its own, without a shell, within a time and an output limit, and the
whole group is ended with it. What rollouts say reaches it as data only.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Literal

from firstbad.agent.files import reason_of
from firstbad.tools.errors import UserError

SHOWN_BYTES = 2000
"""Of standard error: its end."""
AFTER_EXIT_SECONDS = 0.2
"""How long output may still come when the command itself has ended."""
Stopped = Literal["", "timeout", "too_long"]


@dataclass(frozen=True)
class Reply:
    """What a command wrote, and how it ended."""

    out: bytes
    err: str
    """The end of its standard error; untrusted."""
    code: int
    stopped: Stopped
    """Why it was stopped; empty where it ended by itself."""


def words_of(command: str) -> list[str]:
    """The words of a command, as a shell would split them; nothing is expanded.

    Raises:
        UserError: it is empty, a quote is open, or there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"--judge: `{command}`: {str(error).lower()}") from error
    if not words:
        raise UserError("--judge: expected a command, found nothing")
    if shutil.which(words[0]) is None:
        raise UserError(f"--judge: no program `{words[0]}`")
    return words


def ask(words: Sequence[str], given: bytes, *, seconds: float, most_bytes: int) -> Reply:
    """Run a command on some input.

    Raises:
        UserError: it can't be started.
    """
    with tempfile.TemporaryFile() as file:  # a file, so that no side waits for the other to read
        file.write(given)
        file.seek(0)
        try:
            process = subprocess.Popen(
                words,
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(
                f"--judge: `{words[0]}` can't be started: {reason_of(error)}"
            ) from error
    try:
        out, err, stopped = _listen(process, time.monotonic() + seconds, most_bytes)
    finally:
        _end(process)
    return Reply(out, err.decode("utf-8", "replace"), process.returncode, stopped)


def _listen(
    process: subprocess.Popen[bytes], end: float, most_bytes: int
) -> tuple[bytes, bytes, Stopped]:
    """Read until it has ended, or must be."""
    out, err = bytearray(), b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(_pipe(process.stdout), selectors.EVENT_READ, "out")
        waiting.register(_pipe(process.stderr), selectors.EVENT_READ, "err")
        while waiting.get_map() or not _has_ended(process):
            left = end - time.monotonic()
            if left <= 0:
                return bytes(out), err, "timeout"
            ended = _has_ended(process)
            if not waiting.get_map():
                time.sleep(min(left, 0.01))
                continue
            ready = waiting.select(min(left, AFTER_EXIT_SECONDS))
            if ended and not ready:
                break  # what it started holds the pipe open and says nothing
            for key, _ in ready:
                read = os.read(key.fd, 1 << 16)
                if not read:
                    waiting.unregister(key.fileobj)
                elif key.data == "out":
                    out += read
                    if len(out) > most_bytes:
                        return bytes(out[:most_bytes]), err, "too_long"
                else:
                    err = (err + read)[-SHOWN_BYTES:]
    return bytes(out), err, ""


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; it is not yet reaped, so that its group's number stays its own."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of its group, and reap it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        _pipe(pipe).close()
