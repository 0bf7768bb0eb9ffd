"""Copy a run in a small form: what the tools read, repacked; no weights, moments, notes, labels.

python -m firstbad.evals.slim SOURCE TARGET
"""

from __future__ import annotations

import argparse
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from firstbad.tools.readers import open_run

KEPT = ("args.json", "trainer_state.json", "model_config.json", "train.log", "data", "tokenizer")
CHECKPOINT_FILES = ("trainer_state.json", "config.json", "scheduler.pt")
COUNTER_BYTES = 8
"""Largest tensor of an optimizer state that is kept: a count of steps."""


def slim(source: Path, target: Path, *, thin: bool = False, weights: str = "") -> None:
    """Copy a TRL output folder without event files and README.

    Of the weights those tensors are kept whose names begin with `weights`; none without it.

    Completions lose the pandas metadata and are compressed, optimizer states keep their layout and
    counts of steps without the moments; captures and metrics are copied as they are.
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
    for state in filter(zipfile.is_zipfile, source.glob("checkpoint-*/optimizer.pt")):
        _copy_counts(state, target / state.parent.name / state.name)
    for stored in source.glob("checkpoint-*/model.safetensors") if weights else ():
        _copy_weights(stored, target / stored.parent.name / stored.name, weights)
    for completions in source.glob("completions/*.parquet"):
        repack(completions, target / "completions" / completions.name)
    if thin:
        _thin(target)


def _thin(target: Path) -> None:
    drawn = {p for batch in open_run(str(target)).rollouts.batches() for p in batch.prompts}
    for data in target.glob("data/*.jsonl"):
        lines = filter(str.strip, data.read_text(encoding="utf-8").splitlines())
        kept = [line for line in lines if json.loads(line)["prompt"][0]["content"] in drawn]
        data.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    for state in target.glob("checkpoint-*/trainer_state.json"):
        whole = json.loads(state.read_text(encoding="utf-8"))
        state.write_text(json.dumps({"global_step": whole["global_step"], "log_history": []}))


def _copy_counts(source: Path, target: Path) -> None:
    """Copy a saved state without the contents of its large tensors; nothing is unpickled."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(source) as whole,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for entry in whole.infolist():
            if Path(entry.filename).parent.name != "data" or entry.file_size <= COUNTER_BYTES:
                small.writestr(zipfile.ZipInfo(entry.filename), whole.read(entry))


def _copy_weights(source: Path, target: Path, start: str) -> None:
    """Copy the tensors whose names begin with `start`, bit for bit."""
    data = source.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header, kept, at = json.loads(data[8:begin]), {}, 0
    pieces = []
    for name, entry in sorted(header.items()):
        if name.startswith(start):
            first, stop = entry["data_offsets"]
            pieces.append(data[begin + first : begin + stop])
            kept[name] = {**entry, "data_offsets": [at, at := at + stop - first]}
    text = json.dumps(kept).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(pieces))


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
    parser.add_argument("--thin", action="store_true")
    parser.add_argument("--weights", default="", metavar="START", help="tensors that are kept")
    arguments = parser.parse_args()
    slim(arguments.source, arguments.target, thin=arguments.thin, weights=arguments.weights)


if __name__ == "__main__":
    main()
