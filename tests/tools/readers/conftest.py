"""Writers of tiny runs: one run in every format, and the pieces of which traps are made."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from firstbad_recorder import Recorder

NAN = float("nan")
STEPS = (1, 2, 3, 4, 5, 6)
METRICS: tuple[dict[str, Any], ...] = tuple(
    {
        "step": step,
        "epoch": step / 10,
        "reward": 0.25 * step,
        "reward_std": 0.5,
        "rewards/exact/mean": 0.125 * step,
        "frac_reward_zero_std": 0.0,
        "completions/clipped_ratio": 0.0,
        "grad_norm": NAN if step == 3 else 0.5,
        "custom/thing": 2.0 * step,
    }
    for step in STEPS
)
ROLLOUT_STEPS = (1, 2, 3)


def rollout_rows(step: int) -> list[dict[str, Any]]:
    """Two prompts with two completions each."""
    return [
        {
            "step": step,
            "prompt": f"sort, {step}{prompt}\nplease",
            "completion": f'ответ "{step}{prompt}{i}"',
            "exact": float(i),
            "advantage": i - 0.5,
        }
        for prompt in (0, 1)
        for i in (0, 1)
    ]


class Make:
    """Writes files below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def text(self, name: str, text: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def json(self, name: str, value: object) -> Path:
        return self.text(name, json.dumps(value))

    def jsonl(self, name: str, rows: Sequence[object]) -> Path:
        return self.text(name, "".join(json.dumps(row) + "\n" for row in rows))

    def csv(self, name: str, rows: Sequence[Mapping[str, object]]) -> Path:
        path = self.text(name, "")
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return path

    def parquet(self, name: str, rows: Sequence[Mapping[str, object]]) -> Path:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.text(name, "")
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
        return path

    def state(self, name: str, rows: Sequence[Mapping[str, object]], **more: object) -> Path:
        """A `trainer_state.json` as Hugging Face writes it."""
        last = max((row["step"] for row in rows), default=0)  # type: ignore[type-var]
        value = {"global_step": last, "log_history": list(rows), "logging_steps": 1, **more}
        return self.text(name, json.dumps(value, indent=2, sort_keys=True) + "\n")

    def completions(
        self, step: int, rows: Sequence[Mapping[str, object]], folder: str = "completions"
    ) -> Path:
        return self.parquet(f"{folder}/completions_{step:05d}.parquet", rows)

    def board(
        self, name: str, rows: Sequence[Mapping[str, Any]], texts: Mapping[str, str] | None = None
    ) -> Path:
        """An event file: a scalar event for each key of each row, text events before them."""
        records = [_event(0, _text(tag, text)) for tag, text in (texts or {}).items()]
        records += [
            _event(row["step"], _scalar(key, value))
            for row in rows
            for key, value in row.items()
            if key != "step"
        ]
        return self.text(name, b"".join(_framed(record) for record in records))


def _field(number: int, kind: int, data: bytes) -> bytes:
    return _varint(number << 3 | kind) + (_varint(len(data)) + data if kind == 2 else data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _scalar(tag: str, value: float) -> bytes:
    return _field(1, 2, tag.encode()) + _field(2, 5, struct.pack("<f", value))


def _text(tag: str, text: str) -> bytes:
    tensor = _field(1, 0, _varint(7)) + _field(8, 2, text.encode())
    return _field(1, 2, tag.encode()) + _field(8, 2, tensor)


def _event(step: int, value: bytes) -> bytes:
    wall = _field(1, 1, struct.pack("<d", 1.7e9))
    return wall + _field(2, 0, _varint(step)) + _field(5, 2, _field(1, 2, value))


def _framed(record: bytes) -> bytes:
    return struct.pack("<Q", len(record)) + b"\0" * 4 + record + b"\0" * 4


def _trl(make: Make) -> None:
    make.state("trainer_state.json", METRICS)
    make.json("args.json", {"num_generations": 2, "logging_steps": 1})
    for step in ROLLOUT_STEPS:
        rows = [
            {
                **row,
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "completion": [{"role": "assistant", "content": row["completion"]}],
            }
            for row in rollout_rows(step)
        ]
        make.completions(step, rows)


def _tb(make: Make) -> None:
    rows = [{k if k == "step" else f"train/{k}": v for k, v in row.items()} for row in METRICS]
    make.board("runs/a/events.out.tfevents.1700000000.host.1.0", rows)


def _csv(make: Make) -> None:
    make.csv("metrics.csv", METRICS)
    make.csv("rollouts.csv", [row for step in ROLLOUT_STEPS for row in rollout_rows(step)])


def _jsonl(make: Make) -> None:
    make.jsonl("metrics.jsonl", METRICS)
    for step in ROLLOUT_STEPS:
        make.jsonl(f"rollouts/{step}.jsonl", rollout_rows(step))


def _parquet(make: Make) -> None:
    make.parquet("metrics.parquet", METRICS)
    make.parquet("rollouts.parquet", [r for step in ROLLOUT_STEPS for r in rollout_rows(step)])


def _rec(make: Make) -> None:
    """By the writer itself."""
    with Recorder(make.root, config={"num_generations": 2, "logging_steps": 1}) as recorder:
        for row in METRICS:
            recorder.scalars(row["step"], {k: v for k, v in row.items() if k != "step"})
    for step in ROLLOUT_STEPS:
        make.jsonl(f"rollouts/{step}.jsonl", rollout_rows(step))


FORMATS: dict[str, Callable[[Make], None]] = {
    "trl": _trl,
    "rec": _rec,
    "tb": _tb,
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes into the test's own folder."""
    return Make(tmp_path)


@pytest.fixture(params=FORMATS)
def format_name(request: pytest.FixtureRequest, make: Make) -> str:
    """The tiny run, written into the test's folder in each format."""
    FORMATS[request.param](make)
    return str(request.param)


@pytest.fixture
def metrics() -> tuple[dict[str, Any], ...]:
    """Metrics of the tiny run, in TRL's keys."""
    return METRICS


@pytest.fixture
def rollouts() -> Callable[[int], list[dict[str, Any]]]:
    """Rollout rows of the tiny run by step."""
    return rollout_rows
