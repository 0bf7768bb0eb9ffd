"""Copy a run in a small form: what the tools read, repacked; no weights, no notes, no labels.

python -m firstbad.evals.slim SOURCE TARGET
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

KEPT = ("args.json", "trainer_state.json", "model_config.json", "train.log", "data", "tokenizer")
CHECKPOINT_FILES = ("trainer_state.json", "config.json")


def slim(source: Path, target: Path) -> None:
    """Copy a TRL output folder without weights, optimizer state, event files and README.

    Completions lose the pandas metadata and are compressed; captures and metrics are copied as
    they are.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        place = source / name
        if place.is_dir():
            shutil.copytree(place, target / name, dirs_exist_ok=True)
        elif place.exists():
            shutil.copyfile(place, target / name)
    for dumps in source.glob("batch_dumps/*.npz"):
        _copy(dumps, target / "batch_dumps" / dumps.name)
    for name in CHECKPOINT_FILES:
        for state in source.glob(f"checkpoint-*/{name}"):
            _copy(state, target / state.parent.name / name)
    for completions in source.glob("completions/*.parquet"):
        repack(completions, target / "completions" / completions.name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def repack(source: Path, target: Path) -> None:
    """Rewrite a small parquet file without metadata and dictionaries, compressed."""
    import pyarrow.parquet as pq  # heavy: only where used

    table: Any = pq.read_table(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table.replace_schema_metadata(None),
        target,
        compression="zstd",
        use_dictionary=True,
        write_statistics=False,
        store_schema=False,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    slim(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
