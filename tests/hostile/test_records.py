"""Records of the recorder that were written to do harm: offsets, ledgers, figures and rows."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from synthetic.trainer import Trainer

Array = npt.NDArray[Any]
Survive = Callable[..., Any]
JUST_DEEP = json.loads("[" * 400 + "]" * 400)
HUGE = 10**4000
VALUES: dict[str, object] = {
    "deep": JUST_DEEP,
    "a huge number": HUGE,
    "minus a huge number": -HUGE,
    "texts": "x" * 100_000,
    "a list": [1, [2], {"a": None}],
    "an object": {"a": {"b": [True]}},
    "nothing": None,
    "no numbers": "NaN",
    "controls": "\x1b[31m\x00\u202e\ud800",
}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A short sound record."""
    Trainer(steps=6, captures=3, prompts=2, group=4).run(tmp_path / "record")
    return tmp_path / "record"


def captured(record: Path) -> list[Path]:
    return sorted(path.parent for path in record.glob("steps/*/tokens.safetensors"))


def read(survive: Survive, record: Path) -> dict[str, Any]:
    answer = survive(record)
    assert answer.code == 0, answer.err
    assert answer.told["errors"] == []
    told: dict[str, Any] = answer.told
    return told


def replaced(value: object, new: object) -> object:
    """The same keys, every value in them exchanged."""
    if isinstance(value, dict):
        return {key: replaced(inner, new) for key, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [replaced(inner, new) for inner in value]
    return new


KEPT = ("step", "schema_version", "started", "dropped", "probe")


@pytest.mark.parametrize("name", VALUES)
def test_every_field_may_hold_anything(record: Path, survive: Survive, name: str) -> None:
    """In every JSON file of the record, each field but what says which step it is."""
    paths = [*record.glob("*.json*"), *record.glob("steps/*/*.json*")]
    for path in paths:
        rows = (
            [json.loads(line) for line in path.read_text().splitlines()]
            if (path.suffix == ".jsonl")
            else [json.loads(path.read_text())]
        )
        odd = [
            {k: v if k in KEPT else replaced(v, VALUES[name]) for k, v in row.items()}
            for row in rows
        ]
        path.write_text("\n".join(map(json.dumps, odd)) + "\n")
    read(survive, record)


@pytest.mark.parametrize("name", VALUES)
def test_every_object_may_be_anything(record: Path, survive: Survive, name: str) -> None:
    """The same one level up: lists of objects, objects, and whole lines."""
    for path in [*record.glob("steps/*/*.json*"), record / "syncs.jsonl", record / "probes.jsonl"]:
        if not path.exists():
            continue
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            odd = [VALUES[name], *({k: VALUES[name] for k in row} for row in rows)]
            path.write_text("\n".join(map(json.dumps, odd)) + "\n")
        else:
            about = json.loads(path.read_text())
            path.write_text(json.dumps({k: VALUES[name] for k in about}))
    read(survive, record)


def test_the_command_on_odd_fields(record: Path, survive: Survive) -> None:
    for name in ("deep", "controls"):
        about = json.loads((record / "run.json").read_text())
        about |= {"config": {"beta": VALUES[name]}, "requested": {"beta": VALUES[name]}}
        about |= {
            "versions": {"trl": VALUES[name]},
            "restarts": [dict(about)],
            "device": VALUES[name],
        }
        (record / "run.json").write_text(json.dumps(about))
        assert '"outcome"' in survive(record, by_command=True).out


KINDS = {"f4": "F32", "f8": "F64", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8",
         "u8": "U64", "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL"}  # fmt: skip
NUMPY = {stored: layout for layout, stored in KINDS.items()}


def tensors(path: Path) -> dict[str, Array]:
    """Arrays of a tensor file, by hand."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            first, end = (8 + length + place for place in entry["data_offsets"])
            array = np.frombuffer(data[first:end], NUMPY[entry["dtype"]])
            found[name] = array.reshape(entry["shape"])
    return found


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    header, body = {}, b""
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": KINDS[array.dtype.str[1:]],
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


Change = Callable[[dict[str, Array]], dict[str, Array]]


def offsets(make: Callable[[Array], Any]) -> Change:
    return lambda a: {**a, "offsets": np.asarray(make(a["offsets"]))}


def all_to(value: float, *names: str) -> Change:
    def change(arrays: dict[str, Array]) -> dict[str, Array]:
        wanted = names or tuple(n for n in arrays if n != "offsets")
        return {n: np.full_like(a, value) if n in wanted else a for n, a in arrays.items()}

    return change


def one_long_row(arrays: dict[str, Array]) -> dict[str, Array]:
    """Padded to the longest, 100,000 rows would have 10 ** 11 places."""
    total = 1_000_000 + 100_000
    long = {n: np.resize(a, total) for n, a in arrays.items() if a.ndim == 1 and "off" not in n}
    return {**long, "offsets": np.concatenate([[0], 1_000_000 + np.arange(100_001)])}


TOKENS: dict[str, Change] = {
    "no offsets": lambda a: {n: v for n, v in a.items() if n != "offsets"},
    "offsets past the end": offsets(lambda o: o * 1000),
    "offsets up to 2 ** 62": offsets(lambda o: np.append(o[:-1], 2**62)),
    "offsets beyond 2 ** 63": offsets(lambda o: np.append(o[:-1].astype("<u8"), [2**64 - 1])),
    "offsets that go back": offsets(lambda o: o[::-1].copy()),
    "negative offsets": offsets(lambda o: o - 5),
    "offsets of fractions": offsets(lambda o: o + 0.5),
    "two dimensions of offsets": offsets(lambda o: o[None]),
    "one offset": offsets(lambda o: o[:1]),
    "ten million empty rows": offsets(
        lambda o: np.concatenate([np.zeros(10_000_000, np.int64), o[1:]])
    ),
    "one long row": one_long_row,
    "nothing in it": lambda a: {n: v[:0] for n, v in a.items()} | {"offsets": np.zeros(1, int)},
    "rows without tokens": lambda a: {
        **{n: v[:0] for n, v in a.items()}, "offsets": np.zeros(9, int),
    },
    "engine offsets past the end": lambda a: {
        **a, "engine_token_id": a["token_id"], "engine_offsets": a["offsets"] * 7,
    },
    "two dimensions": lambda a: {n: v if n == "offsets" else v[None] for n, v in a.items()},
    "arrays of other lengths": lambda a: {
        n: v if n in ("offsets", "token_id") else v[:-1] for n, v in a.items()
    },
    "no sources that there are": all_to(77, "source"),
    "padding alone": all_to(0, "source"),
    "nothing trained": all_to(0, "loss_mask"),
    "ids below 0": all_to(-1, "token_id"),
    "positions far away": all_to(2**31 - 1, "position"),
    "infinite log-probs": all_to(-np.inf, "logp_old", "logp_new", "logp_engine", "logp_ref"),
    "no log-probs": all_to(np.nan, "logp_old", "logp_new", "logp_engine", "logp_ref", "entropy"),
    "large log-probs": all_to(3e38, "logp_old", "logp_new", "logp_engine", "logp_ref", "entropy"),
    "all ones": all_to(1),
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENS)
def test_token_files(record: Path, survive: Survive, name: str) -> None:
    for step in captured(record)[1:]:
        path = step / "tokens.safetensors"
        write(path, TOKENS[name](tensors(path)))
    assert read(survive, record)["steps"][2] == len(captured(record))


def test_a_large_record(record: Path, survive: Survive) -> None:
    """More rows and lines than any step or run has."""
    step = captured(record)[0]
    for name, times in (("rollouts.jsonl", 500), ("microbatches.jsonl", 5_000)):
        path = step / name
        path.write_text(path.read_text() * times)
    for name in ("syncs.jsonl", "probes.jsonl", "events.jsonl"):
        path = record / name
        line = path.read_text().splitlines()[0] if path.exists() else '{"step": 1}'
        path.write_text((line + "\n") * 5_000)
    read(survive, record)


def test_what_is_no_step(record: Path, survive: Survive) -> None:
    steps = record / "steps"
    for name in ("9" * 200, "-1", "1.5", "..x", "00000001.draft", "x\ny"):
        (steps / name).mkdir()
        (steps / name / "rollouts.jsonl").write_text("{}\n")
    (steps / "00000099").symlink_to("/")
    (captured(record)[0] / "step.json").unlink(missing_ok=True)
    (captured(record)[0] / "step.json").symlink_to("/etc/hostname")
    read(survive, record)
