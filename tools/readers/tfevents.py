"""TensorBoard event files, parsed by hand: no tensorboard, no sampling of points.

A file is a list of records: 8 bytes length, 4 bytes checksum, data, 4 bytes checksum. The data is
a protobuf Event. Checksums are not verified; a record that does not fit ends the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from firstbad.tools.readers.log import Log

_FIXED = {1: 8, 5: 4}


@dataclass
class EventFile:
    """The scalars and texts of one file."""

    name: str
    log: Log = field(default_factory=Log)
    texts: dict[str, str] = field(default_factory=dict)
    """Text summaries by tag, such as `args/text_summary`."""
    cut_at: int | None = None
    """Byte at which a record did not fit."""


def parse_events(data: bytes, name: str) -> EventFile:
    """Scalars and texts of an event file's bytes, as far as they can be read."""
    found = EventFile(name)
    at, end = 0, len(data)
    length_of = struct.Struct("<Q").unpack_from
    while at + 12 <= end:
        (length,) = length_of(data, at)
        start = at + 12
        if start + length + 4 > end:
            found.cut_at = at
            return found
        try:
            _event(data, start, start + length, found)
        except (IndexError, struct.error, ValueError):
            found.cut_at = at
            return found
        at = start + length + 4
    if at != end:
        found.cut_at = at
    return found


def _event(data: bytes, at: int, end: int, found: EventFile) -> None:
    step = 0
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            if key >> 3 == 2:
                step = value
        elif kind == 2:
            length, at = _varint(data, at)
            if key >> 3 == 5:
                _summary(data, at, at + length, step, found)
            at += length
        else:
            at += _FIXED[kind] if kind in _FIXED else _bad()
    if at != end:
        _bad()


def _summary(data: bytes, at: int, end: int, step: int, found: EventFile) -> None:
    while at < end:
        key, at = _varint(data, at)
        if key != 0x0A:
            at = _skip(data, at, key)
            continue
        length, at = _varint(data, at)
        _value(data, at, at + length, step, found)
        at += length


def _value(data: bytes, at: int, end: int, step: int, found: EventFile) -> None:
    """One Summary.Value: tag, and a simple value or a tensor."""
    tag, value = "", None
    while at < end:
        key, at = _varint(data, at)
        if key == 0x0A:
            length, at = _varint(data, at)
            tag = data[at : at + length].decode("utf-8", "replace")
            at += length
        elif key == 0x15:
            (value,) = struct.unpack_from("<f", data, at)
            at += 4
        elif key == 0x42:
            length, at = _varint(data, at)
            tensor = _tensor(data, at, at + length)
            at += length
            if isinstance(tensor, str):
                found.texts.setdefault(tag, tensor)
            elif tensor is not None:
                value = tensor
        else:
            at = _skip(data, at, key)
    if value is not None:
        found.log.add_series(tag, (step,), (value,))


def _tensor(data: bytes, at: int, end: int) -> float | str | None:
    """The first number or text of a TensorProto."""
    dtype = 0
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 1 and kind == 0:
            dtype, at = _varint(data, at)
            continue
        if kind == 2:
            length, at = _varint(data, at)
            content = data[at : at + length]
            at += length
            if number == 8:
                return content.decode("utf-8", "replace")
            layout = {(4, 1): "<f", (5, 1): "<f", (4, 2): "<d", (6, 2): "<d"}.get((number, dtype))
            if layout and len(content) >= struct.calcsize(layout):
                return float(struct.unpack_from(layout, content)[0])
        elif kind == 5 and number == 5:
            return float(struct.unpack_from("<f", data, at)[0])
        elif kind == 1 and number == 6:
            return float(struct.unpack_from("<d", data, at)[0])
        else:
            at = _skip(data, at, key)
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            _bad()


def _skip(data: bytes, at: int, key: int) -> int:
    kind = key & 7
    if kind == 0:
        return _varint(data, at)[1]
    if kind == 2:
        length, at = _varint(data, at)
        return at + length
    return at + (_FIXED[kind] if kind in _FIXED else _bad())


def _bad() -> int:
    raise ValueError("not an event")
