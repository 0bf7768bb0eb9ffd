"""Make one run: warm start, training in one or more segments, files laid out as TRL writes them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
import trl.trainer.grpo_trainer as grpo_module
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, PrinterCallback
from trl import GRPOConfig

from firstbad.evals.trl_runs.faults import trainer_named
from firstbad.evals.trl_runs.model import warm_start
from firstbad.evals.trl_runs.plan import Run, rows
from firstbad.evals.trl_runs.task import Row, make_rows, write_rows
from firstbad.evals.trl_runs.trainer import LOG, ConsoleLines, LineFormat
from firstbad_recorder.trl import attach

CHECKPOINT_FILES = (
    "config.json",
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "trainer_state.json",
)
BASELINE_EVERY = 10
"""Steps between those that a recorder keeps as healthy samples: these runs are short."""
MODEL_NAME = "tiny-sorter"
BASE_CONFIG: dict[str, Any] = {
    "output_dir": "out",
    "run_name": "grpo-sort",
    "per_device_train_batch_size": 24,
    "per_device_eval_batch_size": 48,
    "gradient_accumulation_steps": 2,
    "num_generations": 8,
    "max_completion_length": 40,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 5,
    "adam_beta2": 0.99,
    "beta": 0.02,
    "loss_type": "dapo",
    "reward_weights": [1.0, 0.3, 0.2],
    "max_steps": 120,
    "logging_steps": 1,
    "logging_first_step": True,
    "save_steps": 60,
    "log_completions": True,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "report_to": ["tensorboard"],
}
README = """# {name}: a small GRPO run

Made with TRL {trl} GRPOTrainer, transformers {transformers}, torch {torch}, on one CPU thread.
Model: Qwen2-shaped, 0.14 million parameters, own word-level tokenizer of 37 tokens, warm-started on
noisy demonstrations of a digit-sorting task. Files: trainer_state.json (log_history), tb/,
completions/ (TRL's log_completions), batch_dumps/ (first micro-batch at steps 1, 2, 10, 20, ...:
one shuffled half of the step's samples, float16), args.json (GRPOConfig), model_config.json, data/
(first 1000 prompts), checkpoint-*/, tokenizer/, train.log.
Intended rewards: correctness (text in the answer tag equals the sorted digits), format (a think
block, then an answer block), brevity (a penalty past 24 tokens).
"""


def quiet() -> None:
    """One thread, so that a run comes out the same each time, and no chatter."""
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # TRL prints tables of samples to the console.
    grpo_module.print_prompt_completions_sample = lambda *_, **__: None


def make_run(run: Run, out: Path, warm_folder: Path, *, record: bool = False) -> Path:
    """Make one run in `out/<name>`; nothing in its files says what was changed.

    `record`: with firstbad-recorder attached, which writes `out/<name>/record`.
    """
    base = warm_start(run.start, warm_folder)
    target = out.resolve() / run.name
    shutil.rmtree(target, ignore_errors=True)
    (target / "data").mkdir(parents=True)
    shutil.copytree(base, target / MODEL_NAME)
    rng = random.Random(1000 + run.seed)
    first, *later = [segment.rows for segment in run.segments]
    files = [(first or rows())(rng), *(make(rng) if make else None for make in later)]
    write_rows(target / "data" / "eval.jsonl", make_rows(rng, 12, *run.start.digits))
    for number, part in enumerate([part for part in files if part is not None], 1):
        name = "train.jsonl" if number == 1 else f"train_{number}.jsonl"
        write_rows(target / "data" / name, part[:1000])
    with _working_in(target):
        parts = [part if part is not None else files[0] or [] for part in files]
        trainer = _train(run, parts, record=record)
        _collect(trainer, keep_all=len(run.segments) > 1)
    versions = {m.__name__: m.__version__ for m in (trl, transformers, torch)}
    (target / "README.md").write_text(README.format(name=run.name, **versions), encoding="utf-8")
    return target


def _train(run: Run, rows_by_segment: list[list[Row]], *, record: bool) -> Any:
    """Train all segments in the current folder; returns the last trainer."""
    trainer: Any = None
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL_NAME)
    for number, segment in enumerate(run.segments, 1):
        resume = f"out/checkpoint-{trainer.state.global_step}" if trainer else None
        args = GRPOConfig(**{**BASE_CONFIG, "seed": run.seed, **run.config, **segment.config})
        LOG.info(
            "start segment %d/%d: max_steps=%d lr=%.4g resume=%s",
            number,
            len(run.segments),
            args.max_steps,
            args.learning_rate,
            resume or "no",
        )
        trainer = trainer_named(segment.trainer or run.trainer)(
            model=AutoModelForCausalLM.from_pretrained(MODEL_NAME),
            reward_funcs=run.make_rewards(),
            args=args,
            train_dataset=Dataset.from_list(rows_by_segment[number - 1]),
            processing_class=tokenizer,
            callbacks=[ConsoleLines()],
            fault={"onset": run.onset or 1, **run.fault},
        )
        trainer.remove_callback(PrinterCallback)
        if record:
            engine = getattr(trainer, "engine_weights", None)
            attach(trainer, "record", engine=engine, baseline_every=BASELINE_EVERY)
        try:
            trainer.train(resume_from_checkpoint=resume)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            LOG.error("training stopped: %s: %s", type(error).__name__, reason)
            trainer.save_state()
            return trainer
    trainer.save_state()
    LOG.info("training finished")
    return trainer


@contextlib.contextmanager
def _working_in(path: Path) -> Iterator[None]:
    """Work in `path` with the log and TensorBoard going there."""
    before, handler = Path.cwd(), logging.FileHandler(path / "train.log")
    handler.setFormatter(LineFormat())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    os.environ["TENSORBOARD_LOGGING_DIR"] = "tb"
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)
        LOG.removeHandler(handler)
        handler.close()


def _collect(trainer: Any, *, keep_all: bool) -> None:
    """Keep what a person would hand over and drop the rest; event files lose the host's name."""
    args = json.dumps(trainer.args.to_dict(), indent=1, sort_keys=True)
    Path("args.json").write_text(args, encoding="utf-8")
    config = json.dumps(trainer.model.config.to_dict(), indent=1)
    Path("model_config.json").write_text(config, encoding="utf-8")
    shutil.move("out/trainer_state.json", "trainer_state.json")
    shutil.move("out/completions", "completions")
    saved = sorted(Path("out").glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    for checkpoint in saved if keep_all else saved[:1]:
        for file in filter(Path.exists, (checkpoint / name for name in CHECKPOINT_FILES)):
            Path(checkpoint.name).mkdir(exist_ok=True)
            shutil.copy(file, checkpoint.name)
    trainer.processing_class.save_pretrained("tokenizer")
    for number, file in enumerate(sorted(Path("tb").glob("events.out.tfevents.*"))):
        time = file.name.split(".")[3]
        file.rename(file.with_name(f"events.out.tfevents.{time}.host.0.{number}"))
    shutil.rmtree("out")
    shutil.rmtree(MODEL_NAME)
