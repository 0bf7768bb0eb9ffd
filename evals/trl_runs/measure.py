"""Before and after figures of a run, to check that its fault really acted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from firstbad.evals.trl_runs.task import FORMAT, answer_in, reply_text

LOGGED = (
    "rewards/correctness_reward/mean",
    "reward",
    "grad_norm",
    "kl",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
    "clip_ratio/region_mean",
    "debug/ratio_max",
    "debug/adv_abs_mean",
    "step_time",
    "learning_rate",
)
MICRO_BATCH = 24


def measure(folder: Path, onset: int | None) -> dict[str, Any]:
    """Mean figures in windows: the first 15 and last 20 steps, 20 before and 20 from the onset."""
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    log = [row for row in state["log_history"] if "loss" in row]
    last = log[-1]["step"]
    windows = {"start": (1, 15), "end": (max(1, last - 19), last)}
    if onset is not None and onset > 1:
        windows["before"] = max(1, onset - 20), onset - 1
        windows["after"] = onset, min(onset + 19, last)
    nan_steps = [row["step"] for row in log if row["grad_norm"] != row["grad_norm"]]
    found: dict[str, Any] = {"first_nan_step": nan_steps[0]} if nan_steps else {}
    for name, (low, high) in windows.items():
        rows = [row for row in log if low <= row["step"] <= high]
        values = {**_logged(rows), **_judged(folder, low, high), **_dumped(folder, low, high)}
        found[name] = {
            key: None if value is None or value != value else round(value, 4)
            for key, value in values.items()
        }
    return found


def _logged(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Means of logged figures."""
    values = {".".join(key.split("/")[-2:]): _mean(row.get(key) for row in rows) for key in LOGGED}
    values["loss_abs"] = _mean(abs(row["loss"]) for row in rows)
    values["trained_share"] = _mean(
        row["debug/trained_tokens"] / (MICRO_BATCH * row["completions/mean_length"])
        for row in rows
        if "completions/mean_length" in row
    )
    return values


def _judged(folder: Path, low: int, high: int) -> dict[str, float | None]:
    """Share of right and of well-formed replies, judged from the text alone."""
    right, formed = [], []
    for file in _within(folder / "completions", "*.parquet", low, high):
        table: Any = pq.read_table(file, columns=["prompt", "completion"])
        for row in table.to_pylist():
            text = reply_text(row["completion"])
            gold = " ".join(sorted(row["prompt"][0]["content"].split()[2:]))
            right.append(float(answer_in(text) == gold))
            formed.append(float(FORMAT.fullmatch(text) is not None))
    return {"right": _mean(right), "formed": _mean(formed)}


def _dumped(folder: Path, low: int, high: int) -> dict[str, float | None]:
    """How much likelier or unlikelier the sampled tokens are than the entropy promises."""
    surprise: list[float] = []
    for file in _within(folder / "batch_dumps", "*.npz", low, high):
        with np.load(file) as dump:
            excess = -(dump["logps"].astype(float) + dump["entropies"].astype(float))
            surprise.extend(excess[dump["completion_mask"]].tolist())
    return {"surprise": _mean(surprise)}


def _within(folder: Path, pattern: str, low: int, high: int) -> Iterator[Path]:
    """Files of these steps, in order."""
    return (file for file in sorted(folder.glob(pattern)) if low <= int(file.stem[-5:]) <= high)


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean without gaps, None when empty."""
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None
