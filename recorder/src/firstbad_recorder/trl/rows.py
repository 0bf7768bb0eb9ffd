"""Rollouts of one generation batch, with names, scores and what they were generated from."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.sources import PADDING, PROMPT, SAMPLED, TOOL
from firstbad_recorder.trl.settings import ends_of, tokenizer_of

GOLD = ("answer", "gold", "solution", "ground_truth", "target", "label", "reference")
MOST_WARNINGS = 3
"""Of one call of a reward function that are kept."""
SOURCE = "recorded_source"
ROW = "recorded_row"
"""Keys of a batch that carry sources and the number of each row through shuffling and splitting."""


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
    raised: tuple[BaseException, str] | None = None
    """The last exception that left a reward function, and its name."""

    def raised_by(self, error: BaseException) -> str:
        """The reward function that an exception came from, in words; empty where none raised it."""
        seen: BaseException | None = error
        while seen is not None:
            if self.raised is not None and seen is self.raised[0]:
                return f"reward function {self.raised[1]}"
            seen = seen.__cause__
        return ""


@dataclass
class Generation:
    """Rows of one generation batch of this process, in the order of generation."""

    number: int
    rows: list[dict[str, object]]
    """Lines of rollouts.jsonl."""
    used: int = 0
    """Rows that updates were made on, each time counted."""

    @property
    def uses(self) -> int:
        """How often all of its rows were used so far."""
        return self.used // max(1, len(self.rows))


def rows_of(
    trainer: Any,
    number: int,
    inputs: Sequence[dict[str, Any]],
    output: dict[str, Any],
    scored: Scored,
) -> list[dict[str, object]]:
    """Lines of rollouts.jsonl of the generation batch of that number."""
    rank = int(trainer.accelerator.process_index)
    version = int(trainer.state.global_step)
    n = len(scored.prompts)
    size = int(trainer.num_generations)
    names = list(trainer.reward_func_names)
    own = scored.rewards[rank * n : (rank + 1) * n].detach().float().cpu().tolist()
    advantage = output["advantages"].detach().float().cpu()
    flat = advantage if advantage.dim() == 1 else advantage.mean(dim=1)
    gold = next((k for k in GOLD if inputs and k in inputs[0]), None)
    ends = {*ends_of(trainer), getattr(tokenizer_of(trainer), "pad_token_id", None)}
    weights = _weights(trainer)
    found: list[dict[str, object]] = []
    for i, (prompt, completion, ids) in enumerate(
        zip(scored.prompts, scored.completions, scored.ids)
    ):
        parts = {name: value for name, value in zip(names, own[i]) if value == value}
        totals = [w * v for w, v in zip(weights, own[i]) if v == v]
        group = (rank * n + i) // size
        found.append({
            "sample": f"{number}-{rank}-{i}",
            "group": f"{number}-{group}",
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


def _weights(trainer: Any) -> list[float]:
    """Of each reward function; 1 where the trainer has none."""
    found = getattr(trainer, "reward_weights", None)
    if found is None:
        return [1.0] * len(trainer.reward_func_names)
    return [float(weight) for weight in found.detach().float().cpu().tolist()]


def sources(trainer: Any, output: dict[str, Any], scored: Scored) -> Any:
    """(R, T) where each token of a batch comes from, told by the ids that were generated.

    Not by masks: what these are changed to is what a record has to show. Tool tokens are what the
    engine gave no log-prob for, or what the trainer says, where there are tools at all.
    """
    import torch

    device = output["prompt_ids"].device
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1).tolist()
    seen = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1).bool().cpu()
    width, usual = seen.shape[1], output["prompt_ids"].shape[1]
    found = torch.where(seen, PROMPT, PADDING)
    tools = _off(output, trainer)
    for i, generated in enumerate(scored.ids):
        made = [int(token) for token in generated]
        n = len(made)
        starts = [usual, *range(width - n, -1, -1)]
        at = next((k for k in starts if k + n <= width and ids[i][k : k + n] == made), None)
        if at is None:  # tokenised again: what stands behind the prompt
            at, n = usual, int(seen[i, usual:].sum())
        found[i, at + n :] = PADDING
        found[i, at : at + n] = SAMPLED
        if tools is not None and at == usual:
            found[i, at : at + n][tools[i, :n]] = TOOL
    return found.to(torch.uint8).to(device)


def _off(output: dict[str, Any], trainer: Any) -> Any:
    """(R, C) bool: tokens that no engine sampled, where there are tools at all."""
    import torch

    tools = output.get("tool_mask") if _has_tools(trainer) else None
    if tools is None:
        return None
    engine = output.get("sampling_per_token_logps")
    off = ~tools.bool()
    return (off if engine is None else off | torch.isnan(engine)).cpu()


def _has_tools(trainer: Any) -> bool:
    names = ("tools", "rollout_func", "environments", "environment_factories")
    return any(getattr(trainer, name, None) for name in names)


def time_rewards(trainer: Any, scored: Callable[[], Scored]) -> None:
    """Have the reward functions say what `timed` tells; models and coroutines are left alone."""
    import torch

    for i, (name, function) in enumerate(zip(trainer.reward_func_names, trainer.reward_funcs)):
        own = function if inspect.isfunction(function) else type(function).__call__
        waits = any(map(inspect.iscoroutinefunction, (function, own)))
        if callable(function) and not isinstance(function, torch.nn.Module) and not waits:
            trainer.reward_funcs[i] = timed(function, name, scored, time.monotonic)


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
            scored().raised = error, name
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
