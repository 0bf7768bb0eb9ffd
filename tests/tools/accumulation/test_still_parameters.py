"""Tensors that stop training while others go on: by counts of steps and by stored weights."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.readers.weights import Tensor, sampled_weights
from firstbad.tools.run import Checkpoint, Run

TOOL = "find_still_parameters"
LAYOUTS = {"F32": "<f4", "BF16": "<u2"}
NAMES = [
    "model.embed_tokens.weight",
    *(f"model.layers.{i}.mlp.weight" for i in range(4)),
    "model.norm.weight",
]
BLOCKS = NAMES[1:5]

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Arrays = dict[str, npt.NDArray[Any]]


def write_counts(path: Path, counts: Sequence[int]) -> None:
    state = {"state": {i: {"step": n, "exp_avg": None} for i, n in enumerate(counts)}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("optimizer/data.pkl", pickle.dumps(state, protocol=2))


def write_weights(path: Path, arrays: Arrays, dtype: str = "F32") -> None:
    header, at = {}, 0
    for name, array in arrays.items():
        end = at + array.size * np.dtype(LAYOUTS[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    numbers = b"".join(a.astype(LAYOUTS[dtype]).tobytes() for a in arrays.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + numbers)


def checkpoint(folder: Path, step: int) -> Checkpoint:
    names = tuple(sorted(p.name for p in folder.iterdir()))
    return Checkpoint(step=step, path=folder, files=names, state_step=step)


@pytest.fixture(name="counted")
def _counted(tmp_path: Path) -> Callable[[Mapping[int, Sequence[int]]], tuple[Checkpoint, ...]]:
    """Checkpoints by step, with the counts of their tensors."""

    def build(counts: Mapping[int, Sequence[int]]) -> tuple[Checkpoint, ...]:
        found = []
        for step, of_tensor in counts.items():
            folder = tmp_path / f"checkpoint-{step}"
            folder.mkdir()
            write_counts(folder / "optimizer.pt", of_tensor)
            found.append(checkpoint(folder, step))
        return tuple(found)

    return build


@pytest.fixture(name="stored")
def _stored(tmp_path: Path) -> Callable[..., tuple[Checkpoint, ...]]:
    """Checkpoints at 20, 40, ...: which tensors move before each, and the share of numbers."""

    def build(
        *moving: Sequence[str],
        share: float = 1.0,
        file: str = "model.safetensors",
        dtype: str = "F32",
        names: Sequence[str] = NAMES,
    ) -> tuple[Checkpoint, ...]:
        rng = np.random.default_rng(0)
        arrays: Arrays = {name: rng.integers(1, 60000, (40, 100)) for name in names}
        found = []
        for i, movers in enumerate([[], *moving], 1):
            for name in movers:
                arrays[name] = arrays[name] + (rng.random((40, 100)) < share)
            folder = tmp_path / f"checkpoint-{20 * i}"
            folder.mkdir()
            write_weights(folder / file, arrays, dtype)
            found.append(checkpoint(folder, 20 * i))
        return tuple(found)

    return build


def measured(make_run: MakeRun, measure: Measure, saved: Any, **more: Any) -> dict[str, Any]:
    more.setdefault("signals", {"learning_rate": [1e-4] * 200})
    return measure(TOOL, make_run(checkpoints=saved, **more))


@pytest.mark.parametrize(
    ("counts", "resumes"),
    [
        ({40: [40] * 4, 80: [40, 40, 40, 80]}, []),
        ({80: [40, 40, 40, 80], 120: [40, 40, 40, 120]}, [41]),
        ({80: [40, 40, 40, 80]}, [41]),
        ({30: [30] * 4, 80: [40, 40, 40, 80], 120: [40, 40, 40, 120]}, []),
    ],
    ids=["from a checkpoint on", "older ones were deleted", "since a resume", "between two"],
)
def test_counts_that_stand_still(
    counts: dict[int, list[int]],
    resumes: list[int],
    make_run: MakeRun,
    measure: Measure,
    counted: Any,
) -> None:
    events = [("resume", step, "resumed") for step in resumes]
    found = measured(make_run, measure, counted(counts), events=events)
    assert (found["counted_still"], found["counted_at"], found["n_tensors"]) == (3, 40, 4)
    assert (found["last_good_step"], found["first_bad_step"]) == (40, 41)
    assert not found["sampled"]


def test_steps_that_a_loss_scaler_skipped_widen_the_bracket(
    make_run: MakeRun, measure: Measure, counted: Any
) -> None:
    found = measured(make_run, measure, counted({40: [38, 38], 80: [38, 77]}))
    assert (found["last_good_step"], found["first_bad_step"], found["sampled"]) == (38, 42, True)


@pytest.mark.parametrize(
    "counts",
    [
        {40: [40, 40], 80: [80, 80]},
        {40: [31, 40], 80: [66, 80], 120: [90, 120]},
        {40: [40], 80: [40, 80]},
        {40: [12, 40], 80: [12, 80]},
        {40: [40, 40], 44: [40, 44]},
        {80: [40, 80]},
    ],
    ids=[
        "all count on",
        "an expert that some steps leave out",
        "a part that joined later",
        "an expert that was seldom used",
        "no more than chance",
        "seen once, without a resume",
    ],
)
def test_counts_that_are_no_fault(
    counts: dict[int, list[int]], make_run: MakeRun, measure: Measure, counted: Any
) -> None:
    found = measured(make_run, measure, counted(counts))
    assert (found["still_tensors"], found["first_bad_step"]) == (0, None)


@pytest.mark.parametrize("file", ["model.safetensors", "adapter_model.safetensors"])
def test_weights_that_stand_still(
    file: str, make_run: MakeRun, measure: Measure, stored: Any
) -> None:
    rest = [NAMES[0], NAMES[-1]]
    found = measured(make_run, measure, stored(NAMES, rest, rest, file=file))
    assert (found["weights_still"], found["n_tensors"]) == (4, 6)
    assert found["weights_still_share"] == pytest.approx(4 / 6, abs=1e-6)
    # The last move lies between 20 and 40, or at the latest in the step before 41.
    assert (found["last_good_step"], found["first_bad_step"], found["sampled"]) == (20, 41, True)


@pytest.mark.parametrize(
    ("moving", "more"),
    [
        ([NAMES, NAMES, NAMES], {}),
        ([NAMES, [], []], {}),
        ([NAMES, NAMES[:1], NAMES[:1]], {"signals": {"learning_rate": [1e-4] * 40 + [1e-6] * 60}}),
        ([NAMES, NAMES[:1], NAMES[:1]], {"signals": {"loss": [0.1] * 100}}),
        ([NAMES, NAMES[:1], NAMES], {}),
    ],
    ids=["all move", "none moves", "the rate fell", "no rate is known", "they move again"],
)
def test_weights_that_are_no_fault(
    moving: Any, more: dict[str, Any], make_run: MakeRun, measure: Measure, stored: Any
) -> None:
    assert measured(make_run, measure, stored(*moving), **more)["still_tensors"] == 0


def test_updates_that_vanish_in_16_bits(make_run: MakeRun, measure: Measure, stored: Any) -> None:
    """A few numbers of each tensor move, and of some none: too small a step, no frozen part."""
    saved = stored(NAMES, NAMES[:1], NAMES[:1], share=0.1, dtype="BF16")
    found = measured(make_run, measure, saved)
    assert (found["still_tensors"], found["never_moved_share"]) == (0, 0)


@pytest.mark.parametrize(
    ("config", "declared"),
    [({}, False), ({"freeze_vision_tower": True}, True), ({"adapter.r": 8}, True)],
)
def test_a_part_that_never_moved_is_told_and_not_judged(
    config: dict[str, Any], declared: bool, make_run: MakeRun, measure: Measure, stored: Any
) -> None:
    names = [*NAMES, "model.rotary_emb.inv_freq"]
    rest = [NAMES[0], NAMES[-1]]
    found = measured(make_run, measure, stored(rest, rest, names=names), config=config)
    assert (found["still_tensors"], found["freezing_declared"]) == (0, declared)
    assert found["never_moved_share"] == pytest.approx(4 / 7, abs=1e-6)


def test_a_large_tensor_is_read_in_parts(tmp_path: Path) -> None:
    numbers = np.arange(100_000)
    write_weights(tmp_path / "model.safetensors", {"w": numbers})
    found = sampled_weights(checkpoint(tmp_path, 1))[Tensor("w", "F32", (100_000,))]
    assert len(found) == 2048
    values = found.view(np.float32)
    assert (values[0], values[-1]) == (0, 99_999)
    assert np.unique(np.diff(values)).tolist()[0] == 1


HEADERS: list[Any] = [
    b"",
    b"[1]",
    {"w": 3},
    {"w": {"dtype": "F32"}},
    {"w": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}},
    {"w": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 16]}},
    {"w": {"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}},
    {"w": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}},
    {"w": {"dtype": "F32", "shape": [400], "data_offsets": [0, 1600]}},
    {"w": {"dtype": "F32", "shape": ["4"], "data_offsets": [0, 16]}},
    {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16, 2]}},
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_lies_is_left_out(header: Any, tmp_path: Path) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(16)
    (tmp_path / "model.safetensors").write_bytes(data)
    assert sampled_weights(checkpoint(tmp_path, 1)) == {}
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + text)
    assert sampled_weights(checkpoint(tmp_path, 1)) == {}


def test_a_name_that_is_none_is_not_shown(tmp_path: Path) -> None:
    write_weights(tmp_path / "model.safetensors", {"a\x1b[2J <b>": np.ones(4), "w": np.ones(4)})
    assert [t.name for t in sampled_weights(checkpoint(tmp_path, 1))] == ["w"]


def test_without_data(make_run: MakeRun, missing: Callable[..., str], tmp_path: Path) -> None:
    assert "optimizer state" in missing(TOOL, make_run())
    write_weights(tmp_path / "model.safetensors", {"w": np.ones(4)})
    one = (checkpoint(tmp_path, 1),)
    assert "two checkpoints" in missing(TOOL, make_run(checkpoints=one))


LORA = [f"base_model.model.layers.{i}.q_proj.lora_{side}.weight" for i in range(3) for side in "AB"]
TRAINED = {"learning_rate": [1e-4] * 200, "grad_norm_preclip": [0.5] * 200}


def adapters(folder: Path, step: int, outputs: Mapping[str, float]) -> Checkpoint:
    """An adapter alone, as PEFT saves it: input factors are noise, output factors as given."""
    rng = np.random.default_rng(step)
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    arrays = {name: np.full((8, 8), outputs.get(name, 0.0)) for name in LORA if "lora_B" in name}
    arrays |= {name: rng.normal(size=(8, 8)) for name in LORA if "lora_A" in name}
    header, data = {}, b""
    for name, array in arrays.items():
        numbers = array.astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(numbers)],
        }
        data += numbers
    text = json.dumps(header).encode()
    (path / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return checkpoint(path, step)


@pytest.mark.parametrize(
    ("moved", "zero", "idle"),
    [({}, 3, True), ({LORA[1]: 0.01}, 2, False), ({n: 0.01 for n in LORA}, 0, False)],
    ids=["none", "one of three", "all"],
)
def test_adapters_whose_output_factor_is_still_0(
    moved: dict[str, float],
    zero: int,
    idle: bool,
    make_run: MakeRun,
    measure: Measure,
    tmp_path: Path,
) -> None:
    saved = (adapters(tmp_path, 40, moved if moved else {LORA[3]: -0.0}),)
    found = measured(make_run, measure, saved, signals=TRAINED, config={"adapter.r": 8})
    assert (found["adapter_outputs"], found["adapter_outputs_zero"]) == (3, zero)
    assert (found["adapters_idle"], found["from_start"]) == (idle, idle)
    assert found["first_bad_step"] == (1 if idle else None)
    assert found["still_tensors"] == 0


@pytest.mark.parametrize(
    "signals",
    [
        {"learning_rate": [1e-4] * 200},
        {**TRAINED, "grad_norm_preclip": [0.0] * 200},
        {**TRAINED, "learning_rate": [0.0] * 36 + [1e-4] * 164},
    ],
    ids=["no norm logged", "no gradient", "warm-up from 0"],
)
def test_adapters_that_had_no_reason_to_move(
    signals: dict[str, Any],
    make_run: MakeRun,
    measure: Measure,
    missing: Callable[..., str],
    tmp_path: Path,
) -> None:
    saved = (adapters(tmp_path, 40, {}),)
    assert "two checkpoints" in missing(TOOL, make_run(checkpoints=saved, signals=signals))


def test_adapters_that_stop_are_not_excused_by_being_adapters(
    make_run: MakeRun, measure: Measure, stored: Any, counted: Any
) -> None:
    names = [*LORA, "base.weight"]
    saved = stored(LORA, LORA[:2], LORA[:2], names=names, file="adapter_model.safetensors")
    config = {"adapter.r": 8}
    found = measured(make_run, measure, saved, config=config)
    assert (found["weights_still"], found["freezing_declared"]) == (4, False)
    found = measured(make_run, measure, saved, config={**config, "freeze_q_proj": True})
    assert found["freezing_declared"]


@pytest.mark.parametrize(
    ("signals", "dtype", "still"),
    [
        (TRAINED, "F32", True),
        (TRAINED, "BF16", False),  # small updates vanish in 16 bits
        ({**TRAINED, "grad_norm_preclip": [0.0] * 200}, "F32", False),
        ({**TRAINED, "learning_rate": [0.0] * 200}, "F32", False),
    ],
    ids=["trained", "16 bits", "no gradient", "rate 0"],
)
def test_nothing_that_is_saved_moves(
    signals: dict[str, Any],
    dtype: str,
    still: bool,
    make_run: MakeRun,
    measure: Measure,
    stored: Any,
) -> None:
    found = measured(make_run, measure, stored([], [], dtype=dtype), signals=signals)
    assert (found["all_still"], found["from_start"]) == (still, still)
    assert found["still_tensors"] == 0


def test_a_run_that_moves_is_not_still(make_run: MakeRun, measure: Measure, stored: Any) -> None:
    found = measured(make_run, measure, stored(NAMES[:1], NAMES[:1]), signals=TRAINED)
    assert not found["all_still"]
