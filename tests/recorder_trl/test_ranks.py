"""Two processes that train together: none waits for the other because of what is recorded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from firstbad.tools.readers import open_run
from recorder_trl.lines import rows_in

HERE = Path(__file__).resolve().parent


def run_both(what: str, folder: Path, environment: dict[str, str], repo: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([environment["PYTHONPATH"], str(repo / "src")])
    started = []
    for rank in ("0", "1"):
        own = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        started.append(
            subprocess.Popen(
                [sys.executable, str(HERE / "two_ranks.py"), what, str(folder)],
                env={**environment, **own, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [process.communicate()[0] for process in started]
    codes = [process.returncode for process in started]
    assert codes == [0, 0], "\n".join(text[-3000:] for text in said)


def test_a_step_that_is_not_finite_on_one_rank_is_gone_through_again(
    tmp_path: Path, environment: dict[str, str], repo: Path
) -> None:
    run_both("replay", tmp_path, environment, repo)
    told = [row["text"] for row in rows_in(tmp_path / "record/ranks/0001/events.jsonl")]
    assert any("first value that is not finite: `mul` in the forward pass" in t for t in told), told
    run = open_run(f"rec:{tmp_path / 'record'}")
    assert not {"duplicates", "same_signal"} & {note.code for note in run.notes}
    for name in ("reward_mean", "reward_part/digits", "kl_ref", "clip_frac_total", "step_time"):
        signal = run.signals.get(name)
        assert signal is not None, name
        assert signal.steps.tolist()[:1] == [1]
    logp, again = (run.captures.at(1).numbers(name) for name in ("logp_new", "logp_recheck"))
    assert logp is not None
    assert again is not None
    assert len(logp) == len(again) == 32


def test_what_is_looked_at_more_closely_is_decided_together(
    tmp_path: Path, environment: dict[str, str], repo: Path
) -> None:
    run_both("accumulation", tmp_path, environment, repo)
    assert (tmp_path / "record/certificate.json").exists()
    assert not (tmp_path / "record/ranks").exists()
