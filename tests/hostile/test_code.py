"""Loss code that is hostile: read by the command in a process of its own, never carried out."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firstbad

Look = Callable[[], dict[str, Any]]
FOUND = "ratio = torch.exp(logp - old_logp)\n"
MOST_SECONDS = 20
DEEP = {
    "brackets": "x = " + "(" * 10_000 + ")" * 10_000,
    "lists": "x = " + "[" * 150 + "]" * 150,
    "signs": "x = " + "-" * 100_000 + "1",
    "nots": "x = " + "not " * 50_000 + "y",
    "sums": "x = " + "+".join(["logp"] * 50_000),
    "differences": "x = torch.exp(" + "-".join(["logp"] * 2_000) + ")",
    "attributes": "x = a" + ".b" * 100_000,
    "calls": "x = logp" + ".exp()" * 800,
    "more calls": "x = logp" + ".exp()" * 50_000,
    "subscripts": "x = torch.exp(a" + "[0]" * 900 + " - old_logp)",
    "lambdas": "x = " + "lambda: " * 3_000 + "1",
    "choices": "x = " + "1 if a else " * 5_000 + "2",
    "indents": "".join(" " * i + "if a:\n" for i in range(200)) + " " * 200 + "pass",
    "functions": "".join(" " * i + "def f():\n" for i in range(95))
    + " " * 95
    + "return logp.exp()",
    "strings": "x = f'" + '{f"{' * 20 + "a" + '}"}' * 20 + "'",
}
ODD = {
    "null bytes": b"x = 1\x00\n",
    "nothing": b"",
    "no text": bytes(range(256)),
    "half a letter": b"x = '\xc3'",
    "surrogates": b"x = '\\ud800'\n",
    "mark": b"\xef\xbb\xbf" + FOUND.encode(),
    "odd line ends": FOUND.replace("\n", "\r\x0c\x0b\x1c").encode(),
    "encoding": b"# -*- coding: no-such -*-\n",
    "slow encoding": b"# -*- coding: punycode -*-\n" + b"-a" * 100_000,
    "rotated": b"# -*- coding: rot13 -*-\nvzcbeg bf\n",
    "long number": b"x = " + b"9" * 100_000,
    "large numbers": b"r = torch.exp((logp - old_logp).clamp(max=1"
    + b"0" * 400
    + b"))\ny = 1e999\n",
    "escape": b"r = torch.exp(logp - old_logp['\x1b[2J\x07'])\n",
    "long line": b"r = torch.exp(logp - old_logp[" + b"1," * 100_000 + b"])\n",
}
MANY = {
    "places": FOUND * 12_000,
    "chain": "x0 = logp - old_logp\n"
    + "".join(f"x{i + 1} = x{i} * x{i}\ny = x{i + 1}.exp()\n" for i in range(4_000)),
    "quotients": "a = (rewards - m) / rewards.std()\n" * 8_000 + "b = c < d\n" * 8_000,
    "fills": "a = logp.masked_fill(m, -1e9) - old_logp\n" * 8_000,
    "names": "".join(f"x{i} = x{i - 1} - logp\n" for i in range(1, 20_000)),
}


def seconds_of_children() -> float:
    """Processor time: a busy machine takes longer by the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with one sound file that is found in any case."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "a_loss.py").write_text(FOUND)
    return folder


@pytest.fixture
def look(repo: Path, code: Path, tmp_path: Path) -> Look:
    """Metrics and tables of the tool, by the command; the sound file is always read."""
    packages = [Path(firstbad.__file__).parents[1], repo / "recorder" / "src"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))}
    env["FIRSTBAD_HOME"] = str(tmp_path / "home")
    run = str(repo / "tests" / "runs" / "siskin")
    command = [sys.executable, "-m", "firstbad.agent.cli", "tools", "run", "read_loss_code", run]

    def ask() -> dict[str, Any]:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

        before = seconds_of_children()
        done = subprocess.run(
            [*command, "--code", str(code), "--json"],
            env=env,
            capture_output=True,
            text=True,
            timeout=5 * MOST_SECONDS,
            preexec_fn=limit,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert "\x1b" not in done.stdout
        assert seconds_of_children() - before < MOST_SECONDS
        found: dict[str, Any] = json.loads(done.stdout)["evidence"]
        assert "a_loss.py:1" in [row[1] for row in found["tables"][0]["rows"]]
        return found

    return ask


def test_nested_code(code: Path, look: Look) -> None:
    for name, text in DEEP.items():
        (code / f"{name.replace(' ', '_')}.py").write_text(text)
    metrics = look()["metrics"]
    assert metrics["n_files"] + metrics["n_unread"] == len(DEEP) + 1


def test_odd_text(code: Path, look: Look) -> None:
    for name, data in ODD.items():
        (code / f"{name.replace(' ', '_')}.py").write_bytes(data)
    found = look()
    assert found["metrics"]["n_files"] + found["metrics"]["n_unread"] == len(ODD) + 1
    assert "mark.py:1" in [row[1] for row in found["tables"][0]["rows"]]


def test_much_to_follow(code: Path, look: Look) -> None:
    for name, text in MANY.items():
        (code / f"{name}.py").write_text(text)
    metrics = look()["metrics"]
    assert metrics["n_files"] + metrics["n_unread"] == len(MANY) + 1


def test_large_files(code: Path, look: Look) -> None:
    with (code / "big.py").open("wb") as file:
        file.truncate(2**33)
    for i in range(3):
        (code / f"f{i:02}.py").write_text("x = [" + "1," * 240_000 + "]\n")
    found = look()
    assert found["metrics"]["n_files"] == 1
    why = dict(found["tables"][1]["rows"])
    assert why["big.py"] == "more than 512 KiB"
    assert why["f00.py"] == "too much in it to be followed"


def test_nothing_is_carried_out(code: Path, look: Look, tmp_path: Path) -> None:
    mark = tmp_path / "carried-out"
    text = f"open({str(mark)!r}, 'w')\n"
    (code / "torch.py").write_text(text)
    (code / "conftest.py").write_text(text)
    (code / "__init__.py").write_text(text)
    (code / "b.py").write_text(f"import torch\n__import__('os').system('touch {mark}')\n{text}")
    assert look()["metrics"]["n_files"] == 5
    assert not mark.exists()


def test_links_and_what_is_no_file(code: Path, look: Look, tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("password = torch.exp(logp - old_logp)\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "b.py").write_text(FOUND)
    (code / "out.py").symlink_to(secret)
    (code / "up.py").symlink_to("../secret.py")
    (code / "zero.py").symlink_to("/dev/zero")
    (code / "memory.py").symlink_to("/proc/self/mem")
    (code / "loop.py").symlink_to("loop.py")
    (code / "nowhere.py").symlink_to("nothing.py")
    (code / "around").symlink_to(".")
    (code / "folder").symlink_to(tmp_path / "outside")
    (code / "inside.py").symlink_to("a_loss.py")
    (code / "folder.py").mkdir()
    os.mkfifo(code / "pipe.py")
    found = look()
    assert "password" not in json.dumps(found)
    assert found["metrics"]["n_files"] == 2  # the sound one, and a link to it
    why = dict(found["tables"][1]["rows"])
    assert why["out.py"] == why["up.py"] == why["zero.py"] == "a link that leads out of the path"
    assert why["loop.py"] == "can't be read"
    assert why["pipe.py"] == "no regular file"


def test_odd_names(code: Path, look: Look) -> None:
    for name in ("a\nb.py", "\x1b[31mred.py", "\u202e.py", "-rf.py", "`id`.py", "<b>.py", "|x|.py"):
        (code / name).write_text(FOUND)
    (code / os.fsdecode(b"\xff.py")).write_text(FOUND)
    assert look()["metrics"]["n_files"] == 6  # without those that are no text in one line


def test_many_entries(code: Path, look: Look) -> None:
    for i in range(450):
        (code / f"f{i:03}.py").write_text("")
    found = look()
    assert found["metrics"]["n_files"] == 400
    assert found["tables"][1]["rows"] == [["f399.py", "after 400 files no more are read"]]
