"""Every reader answers the same questions about the same tiny run alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.readers import READERS, open_run

Rows = Callable[[int], list[dict[str, Any]]]

WITHOUT_ROLLOUTS = {"tb"}
"""Formats that hold metrics only."""


def test_is_recognised_and_named(format_name: str, tmp_path: Path) -> None:
    recognised = open_run(str(tmp_path))
    named = open_run(f"{format_name}:{tmp_path}")
    assert recognised.ref == named.ref == f"{format_name}:{tmp_path}"
    assert recognised.framework == "trl"
    assert recognised.root == tmp_path.resolve()


def test_rewards(format_name: str, tmp_path: Path, metrics: tuple[dict[str, Any], ...]) -> None:
    reward = open_run(str(tmp_path)).signals.known["reward_mean"]
    assert reward.source_key == "reward"
    assert reward.unit == "reward"
    assert [reward.at(row["step"]) for row in metrics] == [row["reward"] for row in metrics]


def test_steps_and_parts(format_name: str, tmp_path: Path) -> None:
    run = open_run(str(tmp_path))
    assert run.signals.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert run.last_step == 6
    assert set(run.signals.under("reward_part")) == {"exact"}


def test_unknown_keys(format_name: str, tmp_path: Path) -> None:
    unknown = open_run(str(tmp_path)).signals.unknown
    assert set(unknown) == {"custom/thing"}
    assert unknown["custom/thing"].at(2) == 4.0


def test_nonfinite_steps(format_name: str, tmp_path: Path) -> None:
    norm = open_run(str(tmp_path)).signals.known["grad_norm_preclip"]
    assert norm.nonfinite_steps == (3,)
    assert norm.steps.tolist() == [1, 2, 4, 5, 6]
    assert bool(np.all(np.isfinite(norm.values)))


def test_sources_have_digests(format_name: str, tmp_path: Path) -> None:
    sources = open_run(str(tmp_path)).sources
    assert sources
    for source in sources:
        assert (tmp_path / source.ref).is_file()
        assert source.digest is not None
        assert source.digest.startswith("sha256:")
        assert len(source.digest) == 23


def test_rollouts(format_name: str, tmp_path: Path, rollouts: Rows) -> None:
    run = open_run(str(tmp_path))
    if format_name in WITHOUT_ROLLOUTS:
        assert not run.rollouts
        return
    assert run.rollouts.steps.tolist() == [1, 2, 3]
    batches = {batch.step: batch for batch in run.rollouts.batches()}
    for step in (1, 2, 3):
        batch, rows = batches[step], rollouts(step)
        assert list(batch.prompts) == [row["prompt"] for row in rows]
        assert list(batch.completions) == [row["completion"] for row in rows]
        assert set(batch.rewards) == {"exact"}
        assert batch.rewards["exact"].tolist() == [row["exact"] for row in rows]
        assert batch.advantage is not None
        assert batch.advantage.tolist() == [row["advantage"] for row in rows]
        assert batch.group.tolist() == [0, 0, 1, 1]
        assert batch.gold is None


def test_reading_writes_nothing(format_name: str, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    run = open_run(str(tmp_path))
    list(run.rollouts.batches())
    list(run.captures)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_two_readings_are_equal(format_name: str, tmp_path: Path) -> None:
    one, two = open_run(str(tmp_path)), open_run(str(tmp_path))
    assert one.notes == two.notes
    assert one.events == two.events
    assert list(one.signals.known) == list(two.signals.known)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.prefix)
def test_a_reader_says_what_it_looks_for(reader: Any, tmp_path: Path) -> None:
    assert reader.looks_for
    assert not reader.recognises(tmp_path / "missing")
    assert not reader.recognises(tmp_path)
