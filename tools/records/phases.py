"""Before and after: what differs on both sides of a resume, a new phase or new settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from firstbad.tools.cut import is_cut
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Scalar, Table
from firstbad.tools.records.prompts import prompt_changes, prompts_of_groups
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import total_reward
from firstbad.tools.run import FloatArray, RolloutBatch, Run

BESIDE = 10
"""Steps on each side."""
MOST = 4
"""Changes that are shown, the last ones."""
TEXT = 160
VARIABLES = 20
"""Of the environment, shown."""
KINDS = {"resume": "resume", "phase": "new phase", "config_change": "new settings"}
SIGNALS = {
    "reward": "reward_mean",
    "share cut at the limit": "truncation_rate",
    "tokens of an answer": "completion_length_mean",
    "entropy (nats)": "entropy",
    "KL to the reference (nats)": "kl_ref",
    "gradient norm": "grad_norm_preclip",
    "learning rate": "learning_rate",
    "loss": "loss",
    "seconds of a step": "step_time",
    "reward of evaluations": "eval/reward_mean",
}


class Phases(Metrics):
    """Changes that the record names, or the prompts show."""

    n_resumes: int
    n_phases: int
    """New phases and datasets by name."""
    n_settings: int
    """Changes of settings at a step."""
    n_prompts: int
    """Changes of the mix of prompts."""
    last_step: int | None
    """Step of the last of them."""


@tool
def compare_phases(run: Run) -> Measured[Phases]:
    """Prompts, answers, settings and signals in the ten steps on both sides of every change.

    A change is a resume, a new phase or new settings at a step that the record names, or a lasting
    change of the prompts (see `compare_prompts`). None of them fails a layer by itself.

    Cannot tell: which of the differences matters, nor a change that nothing names and no prompt
    shows.
    """
    batches = list(run.rollouts.batches())
    if not batches and not run.signals.known:
        raise NoData("neither rollouts nor signals, so nothing has two sides")
    found = _changes(run, batches)
    asked: dict[str, int] = {}
    for batch in batches:
        for prompt in prompts_of_groups(batch):
            asked.setdefault(prompt, batch.step)
    kinds = [kind for said in found.values() for kind, _ in said]
    tables = [_table(run, step, said, asked) for step, said in sorted(found.items())[-MOST:]]
    metrics = Phases(
        n_resumes=kinds.count("resume"),
        n_phases=kinds.count("phase"),
        n_settings=kinds.count("config_change"),
        n_prompts=kinds.count("prompts"),
        last_step=max(found, default=None),
    )
    told = ", ".join(
        f"step {step} ({_named(said)})" for step, said in sorted(found.items())[-MOST:]
    )
    return Measured(
        metrics,
        f"changes on record: {told}" if told else "no resume, new phase, new settings or prompts",
        tables=tuple(t for t in tables if t.rows),
    )


_Said = list[tuple[str, str]]
"""Kind and text of what happened at one step."""


def _changes(run: Run, batches: list[RolloutBatch]) -> dict[int, _Said]:
    found: dict[int, _Said] = {}
    for event in run.events:
        if event.kind in KINDS and event.step is not None:
            found.setdefault(event.step, []).append((event.kind, event.text))
    for at in prompt_changes(batches):
        found.setdefault(batches[at].step, []).append(("prompts", "the prompts are others"))
    return found


def _named(said: _Said) -> str:
    return ", ".join(dict.fromkeys(KINDS.get(kind, "new prompts") for kind, _ in said))


def _table(run: Run, step: int, said: _Said, asked: Mapping[str, int]) -> Table:
    """`asked`: the step at which each prompt was asked first."""
    steps = run.rollouts.steps
    sides = steps[steps < step][-BESIDE:], steps[steps >= step][:BESIDE]
    batches = [list(run.rollouts.batches(side)) for side in sides]
    rows: list[tuple[Scalar, ...]] = [
        (KINDS.get(kind, "new prompts"), None, text[:TEXT]) for kind, text in said if text
    ]
    if all(batches):
        before, after = (dict(_of_rollouts(run, side, asked)) for side in batches)
        rows += [(name, before.get(name), after.get(name)) for name in after]
    rows += _of_signals(run, step)
    rows += _of_processes(run, step)
    spans = [f"{b[0].step} to {b[-1].step}" if b else "none" for b in batches]
    if not all(batches):
        spans = [f"up to {step - 1}", f"from {step}"]
    return Table(
        title=f"both sides of step {step}: {_named(said)}",
        columns=("of", f"before ({spans[0]})", f"after ({spans[1]})"),
        rows=tuple(row for row in rows if row[1] is not None or row[2] is not None),
    )


def _of_rollouts(
    run: Run, batches: list[RolloutBatch], asked: Mapping[str, int]
) -> Iterator[tuple[str, Scalar]]:
    prompts = [p for b in batches for p in prompts_of_groups(b)]
    yield "a prompt", prompts[0][:TEXT]
    yield "words of a prompt", _short(np.mean([len(p.split()) for p in prompts]))
    yield "distinct prompts", len(set(prompts))
    fresh = [asked[p] >= batches[0].step for p in prompts]
    yield "prompts that no earlier step asked", _short(np.mean(fresh))
    yield "rows of a step", _short(np.mean([len(b) for b in batches]))
    yield "words of an answer", _short(np.mean(np.concatenate([b.words for b in batches])))
    totals = [t for b in batches if (t := total_reward(run, b)) is not None]
    yield "reward of the rollouts", _mean(totals)
    for part in dict.fromkeys(name for b in batches for name in b.rewards):
        yield f"`{part}`", _mean([b.rewards[part] for b in batches if part in b.rewards])
    reasons = [r for b in batches for r in b.finish or ()]
    if reasons:
        yield "share cut, by finish reason", _short(np.mean([is_cut(r) for r in reasons]))


def _of_signals(run: Run, step: int) -> Iterator[tuple[Scalar, ...]]:
    for name, key in SIGNALS.items():
        signal = run.signals.get(key)
        if signal is not None:
            before = signal.values[signal.steps < step][-BESIDE:]
            after = signal.values[signal.steps >= step][:BESIDE]
            if len(before) and len(after):
                yield name, _short(before.mean()), _short(after.mean())


def _of_processes(run: Run, step: int) -> Iterator[tuple[Scalar, ...]]:
    """Where a recorder saw it: device and environment of the processes of both sides."""
    sides = [[p for p in run.flight.processes if (p.from_step or 0) <= s] for s in (step - 1, step)]
    if not all(sides):
        return
    before, after = (side[-1] for side in sides)
    yield "device", before.device, after.device
    for name in sorted({*before.environment, *after.environment})[:VARIABLES]:
        values = (p.environment.get(name) for p in (before, after))
        yield f"`{name}`", *(None if v is None else v[:TEXT] for v in values)


def _mean(values: list[FloatArray]) -> float | None:
    every = np.concatenate(values) if values else np.empty(0)
    every = every[np.isfinite(every)]
    return _short(every.mean()) if len(every) else None


def _short(value: float | np.floating) -> float:
    return float(f"{float(value):.4g}")
