"""Parquet files through pyarrow, which is imported only when one is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.tools.errors import UserError
from firstbad.tools.run import FloatArray

MAX_BYTES = 4 * 2**30
MAX_ROWS = 20_000
"""Rows of one step that are read: above what any trainer generates at once."""
MAX_TEXT_BYTES = 2**30
_SOME_ROWS = 64


def open_parquet(path: Path, name: str) -> Any:
    """A `ParquetFile`, its footer read.

    Raises:
        UserError: empty, cut off, or no Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.stat().st_size == 0:
            raise UserError(f"`{name}` is empty")
        return pq.ParquetFile(pa.OSFile(str(path)), pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0][:120]
        raise UserError(f"`{name}` is no readable Parquet file: {reason}") from None


def read_parquet(path: Path, name: str, columns: list[str] | None = None) -> Any:
    """The table of a Parquet file.

    Raises:
        UserError: empty, cut off, or no Parquet file.
    """
    with _reading(path, name) as file:
        return _whole(file, columns)


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


def first_part(path: Path, name: str) -> tuple[Any, int]:
    """The table of a Parquet file up to MAX_ROWS rows and MAX_TEXT_BYTES, and how many rows it has.

    A few kilobytes can stand for gigabytes of equal texts, so size is counted as it unpacks.

    Raises:
        UserError: empty, cut off, or no Parquet file.
    """
    import pyarrow as pa

    with _reading(path, name) as file:
        rows = int(file.metadata.num_rows)
        # No row unpacks to more than all that is stored.
        if rows <= MAX_ROWS and rows * _packed_bytes(file) <= MAX_TEXT_BYTES:
            return _whole(file), rows
        taken: list[Any] = []
        n_rows = n_bytes = 0
        for batch in file.iter_batches(batch_size=_SOME_ROWS, use_threads=False):
            taken.append(batch)
            n_rows += batch.num_rows
            n_bytes += sum(_unpacked_bytes(column) for column in batch.columns)
            if n_rows >= MAX_ROWS or n_bytes >= MAX_TEXT_BYTES:
                break
        return pa.Table.from_batches(taken, file.schema_arrow), rows


@contextmanager
def _reading(path: Path, name: str) -> Iterator[Any]:
    import pyarrow as pa

    file = open_parquet(path, name)
    try:
        if _packed_bytes(file) > MAX_BYTES:
            raise UserError(f"`{name}` unpacks to more than {MAX_BYTES / 2**30:.0f} GiB")
        yield file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0][:120]
        raise UserError(f"`{name}` cannot be read: {reason}") from None
    finally:
        file.close()


def _whole(file: Any, columns: list[str] | None = None) -> Any:
    # One thread: these files are small, and starting a pool costs more than it saves.
    return file.read(columns=columns, use_threads=False)


def _packed_bytes(file: Any) -> int:
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    return sum(int(group.total_byte_size) for group in groups)


def _unpacked_bytes(column: Any) -> int:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return int(column.nbytes)
