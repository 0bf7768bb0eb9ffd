"""Whatever the bytes: a run, or one line for the user; never another exception."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run

T = TypeVar("T")
NAMES = (
    "trainer_state.json",
    "checkpoint-3/trainer_state.json",
    "args.json",
    "config.json",
    "config.yaml",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "completions/completions_00001.parquet",
    "batch_dumps/step_1.npz",
    "batch_dumps/step_2.safetensors",
    "data/train.jsonl",
    "data/train.json",
    "train.log",
    "tb/events.out.tfevents.1.h",
    "metrics.csv",
    "metrics.jsonl",
    "metrics.parquet",
    "rollouts/1.jsonl",
    "logging.jsonl",
)


def told(read: Callable[[], T]) -> T | None:
    """What is read, or None when the user is told in one line why not."""
    try:
        return read()
    except UserError as error:
        text = str(error)
    assert "\n" not in text
    return None


def use(ref: str) -> None:
    """Open a run and read everything in it."""
    run = told(lambda: open_run(ref))
    if run is None:
        return
    for batch in run.rollouts.batches():
        assert len(batch.prompts) == len(batch.completions) == len(batch.group)
        assert all(len(values) == len(batch) for values in batch.rewards.values())
        assert batch.gold is None or len(batch.gold) == len(batch)
    for step in run.captures.steps:
        told(partial(run.captures.at, int(step)))
    if run.vocabulary is not None:
        dict(run.vocabulary.texts)
    for signal in (*run.signals.known.values(), *run.signals.unknown.values()):
        assert bool(np.all(np.isfinite(signal.values)))
        assert bool(np.all(np.diff(signal.steps) > 0))


JSONISH = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["step", "log_history", "model", "vocab", "data", "prompt", "completion",
                         "reward", "added_tokens", "id", "content", "eos_token_id", "answer",
                         "global_step", "columns", "epoch", "uid", "rewards"])
        | st.text(max_size=3),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
QUIET = settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@QUIET
@given(st.sampled_from(NAMES), st.binary(max_size=120))
def test_random_bytes(make: Any, tmp_path: Path, name: str, data: bytes) -> None:
    path = make.text(name, data)
    use(f"trl:{tmp_path}")
    use(str(path))
    use(str(tmp_path))
    path.unlink()


@QUIET
@given(st.sampled_from([n for n in NAMES if "json" in n]), st.lists(JSONISH, max_size=3))
def test_random_json(make: Any, tmp_path: Path, name: str, values: list[Any]) -> None:
    if name.endswith(".json"):
        path = make.json(name, values[0] if len(values) == 1 else values)
    else:
        path = make.jsonl(name, values)
    use(f"trl:{tmp_path}")
    use(str(path))
    use(str(tmp_path))
    path.unlink()


@QUIET
@given(st.text(alphabet="step,;\t\"'\n0123.NaNeE- ", max_size=80))
def test_random_csv(make: Any, text: str) -> None:
    use(str(make.text("m.csv", text)))


@pytest.mark.parametrize("kind", ["parquet", "npz", "state", "board"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_a_changed_byte(
    make: Any,
    tmp_path: Path,
    rollouts: Callable[[int], list[dict[str, Any]]],
    metrics: Any,
    kind: str,
    where: float,
    value: int,
) -> None:
    if kind == "parquet":
        path = make.completions(1, rollouts(1))
    elif kind == "npz":
        path = tmp_path / "d" / "step_1.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, completion_ids=np.ones((2, 3), np.int16), logps=np.zeros((2, 3)))
    elif kind == "state":
        path = make.state("trainer_state.json", metrics)
    else:
        path = make.board("events.out.tfevents.1.h", metrics)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] = value
    path.write_bytes(data)
    use(f"trl:{tmp_path}")
    use(str(tmp_path))
