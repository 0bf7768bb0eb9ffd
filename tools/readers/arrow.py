"""Parquet files through pyarrow, which is imported only when one is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firstbad.tools.errors import UserError

MAX_BYTES = 4 * 2**30


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
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0][:120]
        raise UserError(f"`{name}` is no readable Parquet file: {reason}") from None


def read_parquet(path: Path, name: str, columns: list[str] | None = None) -> Any:
    """The table of a Parquet file.

    Raises:
        UserError: empty, cut off, or no Parquet file.
    """
    import pyarrow as pa

    file = open_parquet(path, name)
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    if sum(group.total_byte_size for group in groups) > MAX_BYTES:
        raise UserError(f"`{name}` unpacks to more than {MAX_BYTES / 2**30:.0f} GiB")
    try:
        # One thread: these files are small, and starting a pool costs more than it saves.
        return file.read(columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0][:120]
        raise UserError(f"`{name}` cannot be read: {reason}") from None
    finally:
        file.close()
