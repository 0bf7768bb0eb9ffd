"""JSON, YAML, event files, logs, tokenizers and completions that are deep, endless or slow."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LeftOut = Callable[..., list[str]]
DEEP = "[" * 200_000 + "]" * 200_000
JUST_DEEP = "[" * 900 + "]" * 900
DIGITS = "9" * 100_000


def laughs(item: str, levels: str = "bcdefghijklmnop") -> str:
    """Each level stands for five of the one before: 5 ** 15 leaves."""
    lines, before = [f"a: &a {item}"], "a"
    for name in levels:
        inside = ", ".join(f"k{i}: *{before}" for i in range(5))
        lines.append(f"{name}: &{name} {{{inside}}}")
        before = name
    return "\n".join(lines) + "\n"


def listed(levels: str = "bcdefghij") -> str:
    lines, before = ["a: &a [x, x, x, x, x]"], "a"
    for name in levels:
        lines.append(f"{name}: &{name} [{', '.join(['*' + before] * 10)}]")
        before = name
    return "\n".join(lines) + f"\nreward_weights: *{before}\n"


YAML = {
    "maps of maps": laughs("{x: 1}"),
    "lists of lists": listed(),
    "a list in itself": "a: &a [*a]\nb: &b {c: *b}\nreward_weights: *a\n",
    "a call": "a: !!python/object/apply:os.system ['touch MARK']\n",
    "a name": "a: !!python/name:os.system\n",
    "deep": "a: " + "[" * 3000 + "]" * 3000,
    "large": "".join(f"k{i}: v\n" for i in range(200_000)),
    "no date": "a: 2001-13-45\n",
    "an endless number": f"a: {DIGITS}\n",
    "a list as a key": "? [a]\n: b\n",
    "one key twice": "beta: 0.1\nbeta: [x]\n",
    "texts": "just words\n",
    "two documents": "a: 1\n---\nb: 2\n",
    "bytes": "a: !!binary |\n  @@@@\n",
}


@pytest.mark.parametrize("name", YAML)
def test_yaml(run: Path, mark: Path, left_out: LeftOut, name: str) -> None:
    text = YAML[name].replace("MARK", str(mark))
    (run / "config.yaml").write_text(text)
    (run / ".hydra").mkdir()
    (run / ".hydra" / "config.yaml").write_text(text)
    left_out()


def test_yaml_of_the_user_is_refused_in_a_line(run: Path, survive: Callable[..., Any]) -> None:
    (run / "firstbad.yaml").write_text(laughs("{x: 1}"))
    answer = survive(run, by_command=True)
    assert answer.code == 2
    assert answer.err == "firstbad: `firstbad.yaml` stands for more than 100,000 values\n"


JSON = {
    "deep": f'{{"a": {DEEP}}}',
    "just as deep as can be read": f'{{"a": {JUST_DEEP}, "reward_weights": {JUST_DEEP}}}',
    "deep maps": '{"a":' * 900 + "1" + "}" * 900,
    "an endless number": f'{{"seed": {DIGITS}, "beta": {"9" * 4200}}}',
    "keys twice": '{"beta": 1, "beta": [1], "beta": {"beta": "x"}}',
    "constants": '{"beta": NaN, "seed": -Infinity, "num_generations": 1e999}',
    "a list": "[1, 2]",
    "half of a surrogate": '{"output_dir": "\\ud800", "loss_type": "\\udfff"}',
    "controls": '{"loss_type": "\\u001b[31mred\\u0000\\n", "a\\u001b]0;x\\u0007": 1}',
}
SETTINGS = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "run.json",
    "tokenizer/tokenizer_config.json",
    "checkpoint-60/trainer_state.json",
    "checkpoint-60/config.json",
    "grpo_config.json",
)


@pytest.mark.parametrize("name", JSON)
def test_json(run: Path, left_out: LeftOut, name: str) -> None:
    for path in SETTINGS:
        (run / path).write_text(JSON[name])
    left_out()


@pytest.mark.parametrize("name", JSON)
def test_json_lines(run: Path, survive: Callable[..., Any], name: str) -> None:
    row = JSON[name].replace("{", '{"step": 1, "prompt": "p", "completion": ', 1)
    (run / "m.jsonl").write_text((row + "\n") * 3)
    (run / "data" / "more.jsonl").write_text((row + "\n") * 3)
    assert survive(run).told["errors"] == []


def test_settings_in_the_screen_and_the_memo(run: Path, survive: Callable[..., Any]) -> None:
    """By the command: nothing of the run steers the terminal, and there is one JSON object."""
    (run / "config.json").write_text(JSON["controls"])
    answer = survive(run, by_command=True)
    assert json.loads(answer.out)["outcome"] == "undetermined"


TOKENIZERS = {
    "deep": f'{{"model": {{"vocab": {DEEP}}}}}',
    "large": json.dumps({"model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(400_000)}}}),
    "endless ids": f'{{"added_tokens": [{{"id": {DIGITS}, "content": "x"}}], "model": 5}}',
    "odd ids": '{"added_tokens": [{"id": -5, "content": "x"}, {"id": true, "content": "y"}],'
    ' "model": {"vocab": {"a": 1e30, "b": -1, "c": 99999999999999999999}}}',
    "a long token": json.dumps({"model": {"vocab": {"x" * 5_000_000: 3}}}),
    "other types": '{"added_tokens": {"id": 1}, "model": {"vocab": [[[]], 5, null], "type": []}}',
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(run: Path, left_out: LeftOut, name: str) -> None:
    (run / "tokenizer.json").write_text(TOKENIZERS[name])
    (run / "tokenizer_config.json").write_text(TOKENIZERS[name])
    left_out()


def record(data: bytes, length: int | None = None) -> bytes:
    length = len(data) if length is None else length
    return struct.pack("<Q", length) + bytes(4) + data + bytes(4)


FAR = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
BOARDS = {
    "a record of 2**62 bytes": record(b"abc", 2**62),
    "fields that end far away": record(b"\x2a" + FAR + b"\x0a" + FAR + b"\x0a" + FAR + b"t") * 9999,
    "a number without end": record(b"\x10" + b"\xff" * 50_000) * 20,
    "groups": record(b"\x0b\x0c" * 5000) * 20,
    "nothing but ends": bytes(500_000),
}


@pytest.mark.parametrize("name", BOARDS)
def test_event_files(run: Path, left_out: LeftOut, name: str) -> None:
    (run / "tb").mkdir()
    (run / "tb" / "events.out.tfevents.1.h").write_bytes(BOARDS[name])
    left_out()


N = 20_000
LINES = {
    "no equals sign": "start segment 1/2: " + "a" * N,
    "open brackets": "(" * N + " step 1",
    "open square brackets": "[" * N + " step 1 x=1",
    "open process": "(" + "pid=1" * (N // 5),
    "spaces after step": "step" + " " * N + "x",
    "spaces before": " " * N + "step 3",
    "dots": "a." * (N // 2) + " step 3 x=1",
    "a key of brackets": "step 3 " + "a(" * (N // 2),
    "words": "step 3 " + "a " * (N // 2),
    "quotes": "{'a': 1, " + "'a" * (N // 2),
    "an open quote": "{'a': 1, '" + "a" * N,
    "almost warnings": "Warnin" * (N // 6),
    "almost errors": "a.Erro" * (N // 6),
    "almost colours": "\x1b[" + "0;" * (N // 2),
    "digits": "step " + "1" * N + " x=" + "1" * N,
    "almost bars": "1/1 [" * (N // 5),
}


@pytest.mark.parametrize("name", LINES)
def test_slow_lines_of_a_log(run: Path, survive: Callable[..., Any], name: str) -> None:
    (run / "more.log").write_text((LINES[name] + "\n") * 40)
    answer = survive(run)
    assert answer.told["errors"] == []
    assert answer.seconds < 8  # what looks ahead from everywhere takes a minute


M = 20_000
COMPLETIONS = {
    "open tags": "<answer>" * (M // 8),
    "tags the wrong way round": "</answer>" + "<answer>" * (M // 8 - 2),
    "many answers": "<think></think>" + "</think><answer></answer>x" * (M // 25),
    "line ends after `answer is`": "answer is" + "\n" * (M - 9),
    "line ends after hashes": "####" + "\n" * (M - 4),
    "hashes": "#" * M,
    "commas": "1," * (M // 2),
    "digits": "1" * M,
    "boxes": "\\boxed{" * (M // 7),
    "signs": "<" * M,
    "spaces": " " * M,
    "answers": "answer " * (M // 7),
    "controls": "\x1b[2J\x00\x07" * 100,
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_slow_completions(run: Path, survive: Callable[..., Any], name: str) -> None:
    """In every row of every step, so that the judge reads them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in sorted((run / "completions").iterdir()):
        table = pq.read_table(path)
        at = table.schema.get_field_index("completion")
        texts = pa.array([COMPLETIONS[name] + str(i) for i in range(len(table))])
        pq.write_table(table.set_column(at, "completion", texts), path, compression="zstd")
    answer = survive(run)
    assert answer.told["errors"] == []
    assert answer.seconds < 12
