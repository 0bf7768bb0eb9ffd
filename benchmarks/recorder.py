"""What recording costs: scalars, a held step, and a real TRL run with and without.

    python benchmarks/recorder.py [--steps 12] [--tokens 256] [--rows 16] [--json]

The TRL run needs torch and trl. It is GRPO on a random model of about ten million parameters, on
one CPU thread. Runs without a recorder, with firstbad's and (where `rlprobe` is installed) with
rlprobe's take turns; a step's time is the least of its kind, since whatever else the machine does
only adds. Beside the ratio stands the share that the recorder's own calls take inside a step.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from firstbad_recorder import Recorder

SCALARS = {
    "loss": 0.1, "reward": 0.5, "kl": 0.01, "entropy": 1.2, "grad_norm": 1.0, "learning_rate": 1e-6,
    "clip_ratio": 0.1, "completions/mean_length": 100.0, "rewards/a/std": 0.3, "ratio_mean": 1.0,
}  # fmt: skip


def scalars_us(folder: Path, steps: int = 2000) -> float:
    """Microseconds of one step of ten numbers, rules included."""
    recorder = Recorder(folder)
    start = time.perf_counter()
    for step in range(steps):
        recorder.scalars(step, SCALARS)
    return (time.perf_counter() - start) / steps * 1e6


def held(folder: Path, rows: int = 64, tokens: int = 1000, steps: int = 12) -> dict[str, float]:
    """Milliseconds, bytes and memory of one held step of so many rows and tokens."""
    rng = np.random.default_rng(0)
    shape = (rows, tokens)
    arrays = {
        "token_id": rng.integers(0, 150_000, shape),
        "source": np.full(shape, 3, np.uint8),
        "loss_mask": np.ones(shape, np.uint8),
        **{
            name: rng.normal(size=shape).astype(np.float32)
            for name in ("logp_new", "logp_old", "logp_engine", "logp_ref", "entropy")
        },
        "advantage": rng.normal(size=shape).astype(np.float32),
    }
    lines = [
        {"sample": str(i), "group": str(i // 8), "prompt": "p" * 400, "completion": "c" * 4000}
        for i in range(rows)
    ]
    recorder = Recorder(folder, ring_steps=4, baseline_every=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = []
    for step in range(steps):
        start = time.perf_counter()
        recorder.hold(step, rollouts=lines, tokens=arrays)
        spent.append(time.perf_counter() - start)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "hold_ms": min(spent) * 1e3,
        "hold_median_ms": statistics.median(spent) * 1e3,
        "hold_bytes_per_token": size / 4 / (rows * tokens),
        "ring_mb_on_disk": size / 2**20,
        "memory_mb": grown / 1024,
    }


def trained(steps: int, tokens: int, rows: int) -> dict[str, float]:
    """Step times of TRL runs, by recorder."""
    import torch

    from firstbad.evals.trl_runs.make import quiet

    quiet()
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    for kind, attach in recorders().items():
        with tempfile.TemporaryDirectory() as scratch:
            trainer = make_trainer(Path(scratch), steps, tokens, rows)
            inner = attach(trainer, Path(scratch) / "record")
            clock = Clock()
            trainer.add_callback(clock.callback())
            trainer.train()
            times[kind] = clock.steps[1:]
            found[f"{kind}_step_seconds"] = min(times[kind])
            if inner is not None:
                # The first steps hold further passes, as one in a hundred does.
                plain = [i / s for i, s in zip(inner(), clock.steps, strict=False)][2:]
                found[f"{kind}_share_of_step"] = statistics.median(plain)
    for kind in times:
        if kind != "none":
            found[f"{kind}_over_none"] = min(times[kind]) / min(times["none"])
    found["preflight_seconds"] = preflight_seconds(tokens, rows)
    found["preflight_over_step"] = found["preflight_seconds"] / min(times["none"])
    return found


def preflight_seconds(tokens: int, rows: int) -> float:
    """One preflight of a trainer of the same kind, the generation of its batch included."""
    from firstbad_recorder.trl import preflight

    with tempfile.TemporaryDirectory() as scratch:
        found = preflight(make_trainer(Path(scratch), 1, tokens, rows))
        assert not found.failed, found.report()
        return found.seconds


Inner = Callable[[], list[float]]


def recorders() -> dict[str, Callable[[Any, Path], Inner | None]]:
    """How each recorder attaches; the inner time of each step where it can be told."""
    found: dict[str, Callable[[Any, Path], Inner | None]] = {"none": lambda *_: None}
    found["firstbad"] = _attach_firstbad
    try:
        import rlprobe.integrations.trl  # noqa: F401
    except ImportError:
        return found
    found["rlprobe"] = _attach_rlprobe
    return found


def _attach_firstbad(trainer: Any, folder: Path) -> Inner:
    from firstbad_recorder.trl import attach as module
    from firstbad_recorder.trl.attach import _Attachment

    spent, steps = [0.0], []
    quietly = _Attachment.quietly

    def timed(self: Any, function: Any, *args: Any, **more: Any) -> Any:
        start = time.perf_counter()
        try:
            return quietly(self, function, *args, **more)
        finally:
            spent[0] += time.perf_counter() - start
            if function.__name__ == "end_step":
                steps.append(spent[0])
                spent[0] = 0.0

    _Attachment.quietly = timed  # type: ignore[method-assign]
    module(trainer, folder)
    return lambda: steps


def _attach_rlprobe(trainer: Any, folder: Path) -> None:
    from rlprobe.integrations.trl import attach

    attach(trainer, str(folder))


class Clock:
    """Seconds of each optimizer step."""

    def __init__(self) -> None:
        """Nothing was timed so far."""
        self.steps: list[float] = []
        self._last = 0.0

    def callback(self) -> Any:
        """A callback that reads the clock."""
        from transformers import TrainerCallback

        clock = self

        class Steps(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                clock._last = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                now = time.perf_counter()
                clock.steps.append(now - clock._last)
                clock._last = now

        return Steps()


def make_trainer(folder: Path, steps: int, tokens: int, rows: int) -> Any:
    """A GRPO trainer on a random model of ten million parameters."""
    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        PrinterCallback,
        ProgressCallback,
        Qwen2Config,
        Qwen2ForCausalLM,
    )
    from trl import GRPOConfig, GRPOTrainer

    from firstbad.evals.trl_runs.model import make_tokenizer
    from firstbad.evals.trl_runs.task import make_rows

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=384, intermediate_size=1024, num_hidden_layers=6,
        num_attention_heads=6, num_key_value_heads=6, max_position_embeddings=4096,
        bos_token_id=None, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")

    def digits(completions: list[Any], **_: Any) -> list[float]:
        return [float(sum(ch.isdigit() for ch in c[0]["content"]) % 2) for c in completions]

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model"),
        reward_funcs=[digits],
        args=GRPOConfig(
            output_dir=str(folder / "out"), per_device_train_batch_size=rows // 2,
            gradient_accumulation_steps=2, num_generations=4, max_completion_length=tokens,
            max_steps=steps, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
            disable_tqdm=True, logging_steps=1, loss_type="dapo",
            generation_kwargs={"min_new_tokens": tokens},
        ),
        train_dataset=Dataset.from_list(make_rows(random.Random(1), 200, 4, 6)),
        processing_class=tokenizer,
    )  # fmt: skip
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = {"scalars_us": scalars_us(Path(scratch) / "a"), **held(Path(scratch) / "b")}
    try:
        found |= trained(arguments.steps, arguments.tokens, arguments.rows)
    except ModuleNotFoundError as missing:
        print(f"`{missing.name}` is not installed: no TRL run")
    if arguments.json:
        print(json.dumps({k: round(v, 5) for k, v in found.items()}, indent=1))
    else:
        for name, value in found.items():
            print(f"{name:28s} {value:12.4f}")


if __name__ == "__main__":
    main()
