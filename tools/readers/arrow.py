"""Parquet files through pyarrow, which is imported only when one is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.tools.errors import UserError
from firstbad.tools.run import FloatArray

MAX_BYTES = 4 * 2**30
_SMALL = 2**20
MAX_ROWS = 20_000
"""Rows of one step that are read: above what any trainer generates at once."""
MAX_TEXT_BYTES = 2**28
"""Of one step, as it unpacks."""
MAX_TABLE_BYTES = 2**27
"""Of a whole table that is turned into Python values, as it unpacks."""
PORTION_BYTES, _LARGE_PORTION_BYTES = 2**25, 2**29
_MOST_PORTIONS = 4_000
"""More of them take long, so that they may be larger."""


def open_parquet(
    path: Path, name: str, whole: Callable[[bytes], object] = lambda data: None
) -> Any:
    """A `ParquetFile`, its footer read; `whole` is given the bytes of a file that is read at once.

    Raises:
        UserError: empty, cut off, no Parquet file, or one whose footer can't be believed.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        size = path.stat().st_size
        if size == 0:
            raise UserError(f"`{name}` is empty")
        # Arrow looks for the footer in the last 64 KiB: of a small file it would read all twice.
        if size <= _SMALL:
            data = path.read_bytes()
            whole(data)
            source = pa.BufferReader(data)
        else:
            source = pa.OSFile(str(path))
        file = pq.ParquetFile(source, pre_buffer=False)
        if not _plausible(file.metadata, size):
            raise UserError(f"`{name}` has a footer that does not fit the file")
        return file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0][:120]
        raise UserError(f"`{name}` is no readable Parquet file: {reason}") from None


def _plausible(footer: Any, file_bytes: int) -> bool:
    """Whether sizes and counts agree with each other: memory is set aside by them.

    Told by row groups alone: Arrow ends the process over a column whose type is damaged.
    """
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    if min((footer.num_rows, *(min(g.num_rows, g.total_byte_size) for g in groups))) < 0:
        return False
    # What compression adds to small or random data is a hundredth at most.
    unpacked = sum(g.total_byte_size for g in groups)
    packed = file_bytes - footer.serialized_size
    if packed > 1.1 * unpacked + 4096 * footer.num_columns * max(1, len(groups)):
        return False
    return bool(sum(g.num_rows for g in groups) == footer.num_rows)


def read_parquet(
    path: Path, name: str, columns: list[str] | None = None, *, most_bytes: int = MAX_TABLE_BYTES
) -> Any:
    """The table of a Parquet file, or these columns of it.

    Raises:
        UserError: empty, cut off, no Parquet file, or one that unpacks to more than `most_bytes`.
    """
    import pyarrow as pa

    with _reading(path, name) as file:
        taken: list[Any] = []
        n_bytes = 0
        for batch in portions(file, columns):
            taken.append(batch)
            n_bytes += _unpacked_bytes(batch)
            if n_bytes > most_bytes:
                raise UserError(f"`{name}` unpacks to more than {most_bytes / 2**20:,.0f} MiB")
        schema = file.schema_arrow
        if columns is not None:
            schema = pa.schema([schema.field(column) for column in columns])
        return pa.Table.from_batches(taken, taken[0].schema if taken else schema)


def portions(
    file: Any, columns: Sequence[str] | None = None, row_groups: Sequence[int] | None = None
) -> Iterator[Any]:
    """Record batches of an open file, each of so few rows that it is small in memory.

    A few kilobytes can stand for gigabytes of equal texts; no row unpacks to more than all that is
    stored of a row group, though.
    """
    widest = max(1, *(_row_bytes(file, i) for i in range(file.metadata.num_row_groups)), 1)
    some = min(file.metadata.num_rows // _MOST_PORTIONS, _LARGE_PORTION_BYTES // widest)
    rows = max(1, min(2**16, max(PORTION_BYTES // widest, some)))
    more: dict[str, Any] = {} if row_groups is None else {"row_groups": list(row_groups)}
    names = None if columns is None else list(columns)
    return iter(file.iter_batches(batch_size=rows, columns=names, use_threads=False, **more))


def _row_bytes(file: Any, group: int) -> int:
    """Most bytes that one row of a row group may unpack to."""
    stored = int(file.metadata.row_group(group).total_byte_size)
    columns = [file.schema.column(i) for i in range(file.metadata.num_columns)]
    if any(c.max_repetition_level for c in columns):  # numbers of a list may be stored once
        return 8 * stored + 16 * len(columns)
    if any(c.physical_type == "BYTE_ARRAY" for c in columns):
        return stored + 16 * len(columns)
    return 16 * len(columns)


def column_values(column: Any) -> list[object]:
    """The values of a column; None for all where Python has none for their type.

    Times in a zone that is not known here, or before the year 1, are of that kind.
    """
    import pyarrow as pa

    try:
        return list(column.to_pylist())
    except (pa.ArrowException, ValueError, KeyError, OverflowError):
        return [None] * len(column)


def float_values(column: Any) -> FloatArray:
    """(N,) a column of numbers as float64, NaN where it has none.

    Straight from Arrow's buffers: `to_numpy` has pyarrow import pandas where that is installed.

    Raises:
        ArrowException: the column holds something else.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.type != pa.float64():  # a cast loads Arrow's compute functions, which takes a while
        array = array.cast(pa.float64())
    if len(array) == 0:
        return np.empty(0)
    present, data = array.buffers()
    rows = slice(array.offset, array.offset + len(array))
    values = np.frombuffer(data, np.float64)[rows].copy()
    if array.null_count:
        bits = np.unpackbits(np.frombuffer(present, np.uint8), bitorder="little")
        values[bits[rows] == 0] = np.nan
    return values


def first_part(
    path: Path,
    name: str,
    choose: Callable[[Any], list[str] | None] = lambda file: None,
    whole: Callable[[bytes], object] = lambda data: None,
) -> tuple[Any, int]:
    """The table of a Parquet file up to MAX_ROWS rows and MAX_TEXT_BYTES, and how many rows it has.

    `choose` names the columns that are read, of an open file; None: all of them. `whole` is given
    the bytes of a file that is read at once.

    Raises:
        UserError: empty, cut off, or no Parquet file.
    """
    with _reading(path, name, whole) as file:
        rows = int(file.metadata.num_rows)
        columns = choose(file)
        if rows <= MAX_ROWS and rows * stored_bytes(file) <= MAX_TEXT_BYTES:
            # One thread: these files are small, and a pool costs more than it saves.
            return file.read(columns=columns, use_threads=False), rows
        return up_to(MAX_ROWS, file, portions(file, columns)), rows


def up_to(most_rows: int, file: Any, batches: Iterator[Any]) -> Any:
    """A table of record batches of an open file, up to so many rows and MAX_TEXT_BYTES."""
    import pyarrow as pa

    taken: list[Any] = []
    n_rows = n_bytes = 0
    for batch in batches:
        taken.append(batch)
        n_rows += batch.num_rows
        n_bytes += _unpacked_bytes(batch)
        if n_rows >= most_rows or n_bytes >= MAX_TEXT_BYTES:
            break
    return pa.Table.from_batches(taken, taken[0].schema if taken else file.schema_arrow)[:most_rows]


@contextmanager
def _reading(
    path: Path, name: str, whole: Callable[[bytes], object] = lambda data: None
) -> Iterator[Any]:
    import pyarrow as pa

    file = open_parquet(path, name, whole)
    try:
        if stored_bytes(file) > MAX_BYTES:
            raise UserError(f"`{name}` unpacks to more than {MAX_BYTES / 2**30:.0f} GiB")
        yield file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0][:120]
        raise UserError(f"`{name}` cannot be read: {reason}") from None
    finally:
        file.close()


def stored_bytes(file: Any) -> int:
    """Bytes of all columns before compression, as the footer says."""
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    return sum(int(group.total_byte_size) for group in groups)


def _unpacked_bytes(batch: Any) -> int:
    return sum(_column_bytes(column) for column in batch.columns)


def _column_bytes(column: Any) -> int:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return int(column.nbytes)
