"""Names and places: out of the root, no files at all, and names that no line or terminal takes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run

LeftOut = Callable[..., list[str]]
ODD = (
    "a\nb.jsonl",
    "a\rb.csv",
    "\x1b[31mred.jsonl",
    "completions/completions_00009\n.parquet",
    "batch_dumps/step_\x1b[2J9.npz",
    "x" * 240 + ".jsonl",
    "\u202egnp.jsonl",
    "-rf.jsonl",
    "`id`.jsonl",
    "$(id).jsonl",
    "%s%n{0}.jsonl",
    "<script>.jsonl",
    "...",
    "..jsonl",
    "~.jsonl",
)


def test_odd_names(run: Path, left_out: LeftOut) -> None:
    for name in ODD:
        (run / name).write_text("{broken\n")
    left_out()


def test_odd_names_by_the_command(run: Path, survive: Callable[..., Any]) -> None:
    for name in ODD:
        (run / name).write_text("{broken\n")
    assert '"outcome"' in survive(run, by_command=True).out


LONG = "9" * 200


def test_numbers_of_many_digits_are_no_steps(run: Path, left_out: LeftOut) -> None:
    for name in (
        f"completions/completions_{LONG}.parquet",
        f"batch_dumps/step_{LONG}.npz",
        f"batch_dumps/{LONG}.npz",
        f"checkpoint-{LONG}/trainer_state.json",
        f"checkpoint-{LONG}/training_args.bin",
        f"tb/events.out.tfevents.{LONG}.h",
        f"rollouts/{LONG}.jsonl",
        f"rollouts/step_{LONG}.jsonl",
    ):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text('{"prompt": "p", "completion": "c", "reward": 1}\n')
    state = run / "checkpoint-60" / "trainer_state.json"
    state.write_text('{"global_step": %s, "log_history": []}' % ("9" * 6000))
    (run / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {LONG: {"content": "x"}, "\u00b2": {"content": "y"}}})
    )
    left_out()


def test_names_that_are_no_text(run: Path, survive: Callable[..., Any]) -> None:
    """By the command, which writes down the names of what it read."""
    for name in (b"\xff\xfe.jsonl", b"completions/\xff_00009.parquet", b"batch_dumps/\xff_9.npz"):
        try:
            (Path(os.fsdecode(os.fsencode(run) + b"/" + name))).write_bytes(b'{"step":1,"kl2":3}\n')
        except OSError:
            pytest.skip("this file system has no such names")
    assert '"outcome"' in survive(run, by_command=True).out


def test_links_out_of_the_run(run: Path, tmp_path: Path, left_out: LeftOut) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1, "kl2": 3}\n')
    (run / "metrics.jsonl").symlink_to(secret)
    (run / "data" / "up.jsonl").symlink_to("../../secret.jsonl")
    (run / "metrics.csv").symlink_to("/dev/zero")
    (run / "batch_dumps" / "step_00009.npz").symlink_to("/proc/self/mem")
    (run / "checkpoint-60" / "optimizer.pt").symlink_to("/dev/zero")
    (run / "checkpoint-60" / "model.safetensors").symlink_to("/dev/zero")
    (run / "checkpoint-99").symlink_to("/")
    (run / "loop").symlink_to("loop")
    notes = left_out()
    assert sum("file_refused" in note for note in notes) == 8


def test_what_is_no_file(run: Path, left_out: LeftOut) -> None:
    for name in ("run.json", "pipe.jsonl", "completions/completions_00009.parquet",
                 "checkpoint-60/optimizer.pt", "more.log", "firstbad.yaml"):  # fmt: skip
        os.mkfifo(run / name)
    (run / "completions" / "completions_00010.parquet").mkdir()
    (run / "tokenizer.json").mkdir()
    left_out()


@pytest.mark.parametrize("name", ["pipe.jsonl", "pipe.parquet", "pipe.log", "pipe"])
def test_a_pipe_is_no_run(tmp_path: Path, survive: Callable[..., Any], name: str) -> None:
    os.mkfifo(tmp_path / name)
    answer = survive(tmp_path / name, by_command=True)
    assert answer.code == 2
    assert answer.err.endswith("is neither a file nor a folder\n")


@pytest.mark.parametrize("ref", ["/dev/zero", "log:/dev/zero", "csv:/dev/zero", "jsonl:/dev/full"])
def test_a_device_is_no_run(survive: Callable[..., Any], ref: str) -> None:
    assert survive(ref, by_command=True).code == 2


@pytest.mark.parametrize(
    "ref",
    ["a\nb", "a\x1b[31mb", "a\0b", "x" * 10_000, "../" * 2000, "\udcff", "nothing:\n", "rec:"],
)
def test_refs_of_no_run(ref: str) -> None:
    with pytest.raises(UserError) as told:
        open_run(ref)
    assert "\n" not in str(told.value)


def test_a_run_whose_own_name_is_no_line(tmp_path: Path) -> None:
    folder = tmp_path / "a\nb"
    folder.mkdir()
    (folder / "m.csv").write_text("step,kl2\n1,2\n")
    for path in (folder, folder / "m.csv"):
        with pytest.raises(UserError, match="no name in one line") as told:
            open_run(str(path))
        assert "\n" not in str(told.value)
