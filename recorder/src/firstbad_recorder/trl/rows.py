"""Rollouts of one generation batch, with names, scores and what they were generated from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

GOLD = ("answer", "gold", "solution", "ground_truth", "target", "label", "reference")
MOST_WARNINGS = 3
"""Of one call of a reward function that are kept."""
ROW = "recorded_row"
"""Key of a batch that carries the number of each row through shuffling and splitting."""


@dataclass
class Scored:
    """What the reward functions of one generation batch gave, on this process."""

    prompts: Sequence[Any] = ()
    completions: Sequence[Any] = ()
    ids: Sequence[Sequence[int]] = ()
    rewards: Any = None
    """(rows of all processes, functions), NaN where not scored."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By reward function: of the call that scored the batch."""
    errors: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """What was logged as a warning or worse while the batch was scored."""


@dataclass
class Generation:
    """Rows of one generation batch of this process, in the order of generation."""

    rows: list[dict[str, object]]
    """Lines of rollouts.jsonl."""

    def names(self, numbers: Sequence[int]) -> list[str]:
        """Names of rows."""
        return [str(self.rows[i]["sample"]) for i in numbers]


def rows_of(
    trainer: Any, inputs: Sequence[dict[str, Any]], output: dict[str, Any], scored: Scored
) -> list[dict[str, object]]:
    """Lines of rollouts.jsonl of one generation batch."""
    rank = int(trainer.accelerator.process_index)
    version = int(trainer.state.global_step)
    n = len(scored.prompts)
    size = int(trainer.num_generations)
    names = list(trainer.reward_func_names)
    own = scored.rewards[rank * n : (rank + 1) * n].detach().float().cpu().tolist()
    advantage = output["advantages"].detach().float().cpu()
    flat = advantage if advantage.dim() == 1 else advantage.mean(dim=1)
    gold = next((k for k in GOLD if inputs and k in inputs[0]), None)
    ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
    weights = trainer.reward_weights.detach().float().cpu().tolist()
    found: list[dict[str, object]] = []
    for i, (prompt, completion, ids) in enumerate(
        zip(scored.prompts, scored.completions, scored.ids)
    ):
        parts = {name: value for name, value in zip(names, own[i]) if value == value}
        totals = [w * v for w, v in zip(weights, own[i]) if v == v]
        group = (rank * n + i) // size
        found.append({
            "sample": f"{version + 1}-{rank}-{i}",
            "group": f"{version + 1}-{group}",
            "prompt": prompt,
            "completion": completion,
            "finish": "stop" if len(ids) and int(ids[-1]) in ends else "length",
            "rewards": parts,
            "reward": sum(totals) if totals else None,
            "advantage": float(flat[i]),
            "gold": None if gold is None else inputs[i].get(gold),
            "n_tokens": len(ids),
            "policy_version": version,
            "rank": rank,
            "errors": dict(scored.errors),
            "latency_seconds": dict(scored.seconds),
        })  # fmt: skip
    return found


def timed(
    function: Any, name: str, scored: Callable[[], Scored], clock: Callable[[], float]
) -> Any:
    """A reward function that says how long it took, what it raised, and what was warned of."""

    def called(*args: Any, **more: Any) -> Any:
        start = clock()
        heard = _Warnings()
        logging.getLogger().addHandler(heard)
        try:
            return function(*args, **more)
        except Exception as error:
            scored().errors[name] = f"{type(error).__name__}: {error}"[:500]
            raise
        finally:
            logging.getLogger().removeHandler(heard)
            scored().seconds[name] = round(clock() - start, 6)
            scored().warnings += [f"scoring with {name}: {text}" for text in heard.texts]

    return called


class _Warnings(logging.Handler):
    """The first few different warnings that are logged while it is there."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()[:500]
        except Exception:  # arguments that do not fit its text
            text = str(record.msg)[:500]
        if len(self.texts) < MOST_WARNINGS and text not in self.texts:
            self.texts.append(text)
