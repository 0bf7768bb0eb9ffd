"""`training_args.bin`: the settings that Hugging Face trainers save by themselves, read inertly."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import NamedTuple

from firstbad.tools.inert_pickle import MAX_BYTES, OLD_TORCH, Refused, first_number, settings_in
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.config import visible
from firstbad.tools.run import Config, Event

MOST = 20
"""Checkpoints of which the settings are read, the newest."""
_LARGEST = 4 * 2**20
"""Bytes of a file that is opened; real ones have about 8 kB."""
_NO_SETTINGS = ("distributed_state", "deepspeed_plugin")
"""Fields that tell of the process."""
PLACES = frozenset(
    {
        *("output_dir", "logging_dir", "run_name", "local_rank", "resume_from_checkpoint"),
        *("project", "report_to", "hub_model_id", "hub_token", "push_to_hub_token"),
    }
)
"""Settings of where a run lies and what it is called: they say nothing of how it trains."""


class Saved(NamedTuple):
    """The settings of one file."""

    file: File
    values: Mapping[str, object]


def read_saved(root: Root) -> tuple[Saved, ...]:
    """What the trainer saved: at the end of the run, then with checkpoints, newest first."""
    by_step = {
        int(match[1]): file
        for file in root.files
        if (match := re.fullmatch(r"checkpoint-(\d{1,15})/training_args\.bin", file.name))
    }
    newest_first = [by_step[step] for step in sorted(by_step, reverse=True)][:MOST]
    last = root.first("training_args.bin")
    files = [*([last] if last else []), *newest_first]
    return tuple(Saved(file, found) for file in files if (found := _settings(root, file)))


def disagreements(saved: Sequence[Saved], config: Config) -> Iterator[Event]:
    """Settings in which the launches, or the file that is used and the newest saved one, differ."""
    for newer, older in zip(saved, saved[1:], strict=False):
        if changed := differences(older.values, newer.values):
            yield _event(f"`{older.file.name}` and `{newer.file.name}`", changed, newer)
    if saved and (changed := differences(saved[0].values, config.values)):
        stated = config.sources[0].ref
        named = f"`{saved[0].file.name}` and `{stated}`, which is used,"
        yield _event(named, changed, saved[0])


def _event(between: str, changed: Sequence[str], saved: Saved) -> Event:
    more = f" and {len(changed) - 8} more" if len(changed) > 8 else ""
    text = f"{between} differ: {', '.join(changed[:8])}{more}"
    return Event("config_change", None, text, saved.file.name)


def _settings(root: Root, file: File) -> dict[str, object]:
    """The settings that a file holds; empty, with a note, where it can't be read as such."""
    data = root.try_read(file, _LARGEST)
    if data is None:
        return {}
    try:
        skip = 0
        if data[:2] == b"PK":
            data = _inside(data)
        elif first_number(data) == OLD_TORCH:
            skip = 3
        found = settings_in(data, skip)
    except Refused as error:
        root.note("pickle_skipped", f"`{file.name}` holds no settings that can be read: {error}")
        return {}
    return visible(
        {
            name: value
            for name, value in found.items()
            if not name.startswith("_") and name not in _NO_SETTINGS
        }
    )


def _inside(data: bytes) -> bytes:
    """The pickle in the zip that torch writes.

    Raises:
        Refused: no such zip, or the pickle is larger than settings are.
    """
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            entry = next(i for i in archive.infolist() if i.filename.endswith("/data.pkl"))
            with archive.open(entry) as file:
                return file.read(MAX_BYTES + 1)
    except StopIteration:
        raise Refused("it is a zip without data.pkl") from None
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, RuntimeError, EOFError,
            NotImplementedError):  # fmt: skip
        raise Refused("it is a damaged zip") from None


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Settings that both state, and differently, as `name a -> b`."""
    return [
        f"{name} {str(one[name])[:60]} -> {str(other[name])[:60]}"
        for name in sorted(one.keys() & other.keys())
        if name not in PLACES and _form(one[name]) != _form(other[name])
    ]


def _form(value: object) -> object:
    """A value as it compares: `SchedulerType.COSINE`, as some write an enum, is `cosine`."""
    return value.rpartition(".")[2].lower() if isinstance(value, str) else value
