"""Whatever is called in whatever order: nothing raises, and what is on disk can be read."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run
from firstbad_recorder import Recorder


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError

    def __str__(self) -> str:
        raise RuntimeError

    def __index__(self) -> int:
        raise RuntimeError

    def __repr__(self) -> str:
        return "Hostile()"


class Endless(list[Any]):
    def __iter__(self) -> Any:
        raise MemoryError


ODD: list[Any] = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1e308, 5e-324, 2**63, -(2**63), 10**400, True, None,
    "NaN", "", "\ud800", "x" * 20_000, b"bytes", np.float16("nan"), np.int64(-1), np.array([1.0]),
    np.array([1, 2]), np.array([]), np.ma.masked, [], [[1]], {}, {"a": {"b": math.nan}}, {1: 2},
    object(), Hostile(), Endless([1]), Path("x"), 1 + 2j, ..., int, np.str_("s"),
    np.datetime64("NaT"),
]  # fmt: skip
NAMES = ["kl", "reward", "entropy", "grad_norm", "loss", "rewards/a/std", "step", "time", "", "a/b"]
FIELDS = ["sample", "prompt", "completion", "reward", "rewards", "gold", "group", "\ud800"]
ARRAYS = ["token_id", "offsets", "source", "loss_mask", "logp_new", "logp_old", "odd"]
ROWS: list[Any] = [
    [[1, 2], [3]], [[0.5, None], [1.0]], [0, 2, 3], np.ones((2, 2)), [[0.5]],
]  # fmt: skip
STEPS: list[Any] = [-1, 2**40, 10**30, "3", None, 2.0, math.nan, True, np.int64(7), Hostile()]
ERRORS: list[BaseException] = [ValueError(), KeyError("\ud800"), KeyboardInterrupt()]
odd = st.sampled_from(ODD) | st.floats() | st.integers(-3, 3)
steps = st.integers(0, 30) | st.sampled_from(STEPS)
row = st.dictionaries(st.sampled_from(FIELDS), odd | st.just({"a": 1.0}))
rows = st.lists(row | odd, max_size=3) | odd
tokens = st.dictionaries(st.sampled_from(ARRAYS), odd | st.sampled_from(ROWS), max_size=4) | odd
whole = st.fixed_dictionaries(
    {},
    optional={
        "rollouts": rows, "generated": rows, "microbatches": rows, "tokens": tokens,
        "numerics": st.dictionaries(st.sampled_from(["norms", "trail", "x"]), odd) | odd,
        "first_pass": odd, "stages": odd, "kept": odd,
    },
)  # fmt: skip
values = st.dictionaries(st.sampled_from(NAMES), odd, max_size=4)
none = st.just(())
no_more: st.SearchStrategy[dict[str, Any]] = st.just({})
OTHERS = ["close", "_on_signal", "again", "rank", "back", "forth", "swap"]
calls = st.one_of(
    st.tuples(st.just("scalars"), st.tuples(steps, values | odd), no_more),
    st.tuples(st.just("hold"), st.tuples(steps), whole),
    st.tuples(st.just("hold"), st.tuples(st.integers(0, 30)), whole),
    st.tuples(st.just("capture"), st.tuples(steps), whole),
    st.tuples(st.just("keep"), st.tuples(odd), no_more),
    st.tuples(st.just("event"), st.tuples(odd | st.just("phase"), steps, odd), no_more),
    st.tuples(st.just("sync"), st.tuples(steps), st.dictionaries(st.just("version"), odd)),
    st.tuples(st.just("probe"), st.tuples(steps, odd), st.dictionaries(st.just("n"), odd)),
    st.tuples(st.just("failed"), st.tuples(st.sampled_from(ERRORS)), no_more),
    st.tuples(st.just("lost"), st.tuples(st.sampled_from(ERRORS)), no_more),
    st.tuples(st.just("is_sample"), st.tuples(steps), no_more),
    st.tuples(st.just("reopen"), st.tuples(odd), no_more),
    st.tuples(st.sampled_from(OTHERS), none, no_more),
)


def strict(folder: Path) -> None:
    """All finished files are strict JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for file in [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]:
        if "unfinished" in file.parent.name:
            continue
        text = file.read_text(encoding="utf-8")
        for part in text.splitlines() if file.suffix == ".jsonl" else [text]:
            json.loads(part, parse_constant=refuse)


def read(folder: Path) -> None:
    """All of a record, as an investigation reads it; one that holds nothing may be refused."""
    try:
        run = open_run(f"rec:{folder}")
    except UserError:
        return
    for step in run.captures.steps:
        run.captures.at(int(step))
    for step in run.rollouts.steps:
        run.rollouts.batch(int(step))
    for step in run.flight.steps:
        run.flight.at(int(step))
    list(run.events)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(calls, min_size=1, max_size=25),
    st.fixed_dictionaries(
        {
            "ring_steps": st.sampled_from([0, 1, 3, 8]),
            "ring_bytes": st.sampled_from([0, 500, 2**28]),
            "max_bytes": st.sampled_from([0, 3000, 2**30]),
            "baseline_every": st.sampled_from([0, 1, 3]),
            "process_ends": st.booleans(),
            "config": odd | st.dictionaries(st.sampled_from(NAMES), odd),
        }
    ),
)
def test_any_calls_in_any_order(calls: list[Any], about: dict[str, Any]) -> None:
    offset = [0.0]
    now: Callable[[], float] = time.time
    with tempfile.TemporaryDirectory() as place, patch("time.time", lambda: now() + offset[0]):
        folder = Path(place) / "record"
        recorders = [Recorder(folder, **about)]
        for name, args, more in calls:
            if name == "again":  # a second recorder on the same folder
                recorders.append(Recorder(folder, **about))
            elif name == "rank":
                recorders.append(Recorder(folder, rank=len(recorders), **about))
            elif name in ("back", "forth"):
                offset[0] += -1e6 if name == "back" else 1e4
            elif name == "swap":
                recorders.append(recorders.pop(0))
            else:
                getattr(recorders[-1], name)(*args, **more)
        if folder.exists():
            strict(folder)
            read(folder)
        for recorder in recorders:
            recorder.close()
        strict(folder)
        read(folder)


TWO = """
import os, random, sys
from firstbad_recorder import Recorder
os.read(0, 1)  # all begin together
draw = random.Random(sys.argv[2])
recorder = Recorder(sys.argv[1], ring_steps=3, baseline_every=5, config={"a": "x" * 50_000})
for step in range(60):
    recorder.scalars(step, kl=draw.choice([0.1, 0.9]), loss="x" if draw.random() < 0.3 else 0.5)
    recorder.hold(step, rollouts=[{"sample": "a"}], tokens={"token_id": [[1, 2]]})
    if draw.random() < 0.1:
        recorder.keep("a look")
    if draw.random() < 0.2:
        recorder.close()
        recorder.reopen()
"""


def test_processes_on_one_folder_leave_files_that_can_be_read(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = tmp_path / "record"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(folder), str(seed)],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for seed in range(3)
    ]  # fmt: skip
    for each in others:
        assert each.stdin is not None
        each.stdin.write("x")
        each.stdin.flush()
    for each in others:
        _, told = each.communicate(timeout=60)
        assert each.returncode == 0, told
    Recorder(folder).close()
    strict(folder)
    read(folder)
    assert not list(folder.rglob("*.tmp"))
