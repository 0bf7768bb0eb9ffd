"""Runs in memory, made in one line: by hand, or by a small simulator of GRPO training.

The simulator shares no arithmetic with the tools: advantages, losses and log-probs are computed
here from their definitions, so that a tool that is wrong does not agree with itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.certificate import Certificate, CertifiedCheck
from firstbad.tools.code.files import open_code
from firstbad.tools.evidence import Evidence, Source
from firstbad.tools.flight import (
    FirstToken,
    Flight,
    FlightStep,
    ParameterGroup,
    Stages,
    Sync,
    SyncedTensor,
)
from firstbad.tools.judge_scores import JudgeScores
from firstbad.tools.registry import run_tool
from firstbad.tools.run import (
    Capture,
    Captures,
    Checkpoint,
    Config,
    Event,
    RolloutBatch,
    Rollouts,
    Run,
    Signal,
    Signals,
    Vocabulary,
)
from synthetic.torch_files import adam_state, moments_of, save_torch

Array = npt.NDArray[np.float64]

PAD, STOP, WORDS = 0, 1, 12
"""Token ids of the small policy: padding, the stop token, and words from 2 on."""


# ------------------------------------------------------------------------------------ by hand


def make_signal(
    name: str, values: Sequence[float] | Array, first_step: int = 1, steps: Any = None
) -> Signal:
    """A signal from its values; what is not finite is counted, as the readers do."""
    value = np.asarray(values, float)
    at = np.arange(first_step, first_step + len(value)) if steps is None else np.asarray(steps)
    finite = np.isfinite(value)
    return Signal(
        name,
        at[finite].astype(np.int64),
        value[finite],
        source_key=name,
        nonfinite_steps=tuple(int(s) for s in at[~finite]),
    )


def make_run(
    *,
    signals: Mapping[str, Any] | None = None,
    rollouts: Sequence[RolloutBatch] = (),
    captures: Sequence[Capture] = (),
    config: Mapping[str, object] | None = None,
    events: Sequence[tuple[Any, ...]] = (),
    first_step: int = 1,
    **fields: Any,
) -> Run:
    """A run from plain values: signals by name, batches, captures, settings, events."""
    known = {
        name: value if isinstance(value, Signal) else make_signal(name, value, first_step)
        for name, value in (signals or {}).items()
    }
    batches = {b.step: b for b in rollouts}
    dumps = {c.step: c for c in captures}
    made: dict[str, Any] = {
        "ref": "memory:heron",
        "root": Path("heron"),
        "framework": "trl",
        "signals": Signals(known),
        "config": Config(dict(config or {})),
        "rollouts": Rollouts(list(batches), lambda steps: map(batches.__getitem__, steps)),
        "captures": Captures(list(dumps), dumps.__getitem__),
        "events": tuple(Event(kind, step, text, "train.log") for kind, step, text in events),
    }
    return Run(**{**made, **fields})


def make_batch(
    step: int = 1,
    *,
    rewards: Mapping[str, Sequence[float]] | None = None,
    size: int | None = None,
    **fields: Any,
) -> RolloutBatch:
    """One step's rollouts; the rows are cut into groups of `size` (default: one group)."""
    parts = {name: np.asarray(v, float) for name, v in (rewards or {}).items()}
    lengths = [len(v) for v in parts.values()]
    lengths += [len(v) for k, v in fields.items() if k in ("prompts", "completions", "group")]
    rows = lengths[0]
    group = np.asarray(fields.pop("group", np.arange(rows) // (size or rows)), np.int64)
    made: dict[str, Any] = {
        "step": step,
        "prompts": [f"add {g} and {step}" for g in group],
        "completions": [f"row {i}" for i in range(rows)],
        "group": group,
        "rewards": parts,
    }
    for name in ("advantage", "total"):
        if fields.get(name) is not None:
            fields[name] = np.asarray(fields[name], float)
    if fields.get("n_tokens") is not None:
        fields["n_tokens"] = np.asarray(fields["n_tokens"], np.int64)
    return RolloutBatch(**{**made, **fields})


def make_capture(step: int = 1, dtypes: Mapping[str, str] | None = None, **arrays: Any) -> Capture:
    """A capture from plain arrays."""
    return Capture(step, {k: np.asarray(v) for k, v in arrays.items()}, dict(dtypes or {}))


def vocabulary() -> Vocabulary:
    """The small policy's vocabulary."""
    texts = {PAD: "<pad>", STOP: "</s>"} | {i: f"w{i}" for i in range(2, WORDS)}
    return Vocabulary(texts, frozenset({STOP}), PAD)


def group_advantages(total: Array, group: npt.NDArray[np.int64], *, divide: bool = True) -> Array:
    """(r - mean) / (s + 1e-4) inside each group, s unbiased: TRL's definition, row by row."""
    result = np.zeros(len(total))
    for g in set(group.tolist()):
        rows = [i for i in range(len(total)) if group[i] == g]
        mean = sum(float(total[i]) for i in rows) / len(rows)
        square = sum((float(total[i]) - mean) ** 2 for i in rows)
        deviation = math.sqrt(square / (len(rows) - 1))
        for i in rows:
            result[i] = (total[i] - mean) / (deviation + 1e-4 if divide else 1.0)
    return result


def with_judge(
    run: Run,
    score: Callable[[RolloutBatch], Any],
    again: Mapping[tuple[int, int], float] | None = None,
    **counts: int,
) -> Run:
    """The run with what a judge says of each row; None or NaN where it says nothing.

    `again`: what it says of some rows when it is asked about them a second time.
    """
    said = {
        (batch.step, row): value
        for batch in run.rollouts.batches()
        for row, value in enumerate(np.asarray(score(batch), float).tolist())
        if math.isfinite(value)
    }
    named = ("not_finite", "unknown", "twice", "unreadable", "timeouts", "crashes", "too_long")
    rows = sum(len(batch) for batch in run.rollouts.batches())
    every = {**dict.fromkeys(named, 0), "asked": rows, "batches": 1, **counts}
    source = Source(kind="judge", ref="judge.jsonl")
    run.judge = JudgeScores(said, {}, every, source, again or {})
    return run


def with_calls(run: Run) -> Run:
    """The run with a judge that agrees, and with quick scoring calls of which none fails."""
    rng = np.random.default_rng(0)
    batches = {
        b.step: replace(
            b,
            errors={"correct": [None] * len(b)},
            latency_seconds={"correct": rng.uniform(0.001, 0.002, len(b))},
        )
        for b in run.rollouts.batches()
    }
    run.rollouts = Rollouts(list(batches), lambda steps: map(batches.__getitem__, steps))
    return with_judge(run, lambda batch: batch.rewards["correct"])


# --------------------------------------------------------------------------------- simulated

TALK = ("so", "then", "carry", "add")
CONFIG: dict[str, object] = {
    "beta": 0.04,
    "bf16": False,
    "fp16": False,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-6,
    "logging_steps": 1,
    "loss_type": "dapo",
    "lr_scheduler_type": "constant",
    "max_completion_length": 64,
    "max_grad_norm": 1.0,
    "num_iterations": 1,
    "reward_weights": [1.0, 0.2],
    "scale_rewards": "group",
    "use_vllm": False,
}


def simulate(
    seed: int = 0,
    *,
    steps: int = 60,
    groups: int = 4,
    size: int = 8,
    first_step: int = 1,
    solve: tuple[float, float] = (0.2, 0.8),
    tagged: float = 0.9,
    config: Mapping[str, object] | None = None,
    edit: Callable[[SimpleNamespace], None] | None = None,
    train: Callable[[SimpleNamespace], None] | None = None,
    log: Callable[[dict[str, Array], Array], None] | None = None,
    dumps: int = 0,
    **fields: Any,
) -> Run:
    """A run of sums to be solved, with its rollouts, advantages, losses and other signals.

    `edit` may change a step's rows and rewards before advantages are computed from them, `train`
    the advantages that go into the loss, `log` what is logged. `dumps` captures are taken.
    """
    rng = np.random.default_rng(seed)
    settings = {
        **CONFIG,
        "num_generations": size,
        "per_device_train_batch_size": groups * size,
        "max_steps": steps,
        **(config or {}),
    }
    rows: list[dict[str, float]] = []
    batches = []
    for step in range(first_step, first_step + steps):
        draft = _draft(rng, step, groups, size, solve, tagged)
        if edit is not None:
            edit(draft)
        weights = settings["reward_weights"]
        assert isinstance(weights, list)
        parts = np.stack([draft.rewards[name] for name in draft.rewards])
        draft.total = np.nansum(parts * np.array(weights)[:, None], axis=0)
        draft.advantage = group_advantages(draft.total, draft.group)
        if train is not None:
            train(draft)
        rows.append(_logged(rng, draft, settings))
        batches.append(
            RolloutBatch(
                step=step,
                prompts=draft.prompts,
                completions=draft.completions,
                group=draft.group,
                rewards=draft.rewards,
                advantage=draft.advantage,
                gold=draft.gold,
                n_tokens=draft.n_tokens,
            )
        )
    at = np.arange(first_step, first_step + steps, dtype=float)
    values = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    if log is not None:
        log(values, at)
    spots = np.unique(np.linspace(0, steps - 1, dumps).astype(int)).tolist()
    return make_run(
        signals=values,
        first_step=first_step,
        rollouts=batches,
        captures=[
            sample_capture(int(at[i]), seed=1000 * seed + int(i), moved=0.5 * i / steps)
            for i in spots
        ],
        config=settings,
        vocabulary=fields.pop("vocabulary", vocabulary()),
        **fields,
    )


def _draft(
    rng: np.random.Generator,
    step: int,
    groups: int,
    size: int,
    solve: tuple[float, float],
    tagged: float,
) -> SimpleNamespace:
    """One step's rows before any reward is given: sums with distinct answers."""
    rows = groups * size
    group = np.repeat(np.arange(groups), size)
    answers = (100 + rng.choice(800, groups, replace=False)).tolist()
    left = rng.integers(1, 100, groups).tolist()
    right = rng.random(rows) < rng.uniform(*solve, groups)[group]
    said = (np.array(answers)[group] + np.where(right, 0, rng.integers(1, 60, rows))).tolist()
    in_tags = rng.random(rows) < tagged
    talk = rng.integers(0, 4, (rows, 12)).tolist()
    length = rng.integers(3, 12, rows).tolist()
    completions = []
    for i in range(rows):
        text = " ".join(TALK[w] for w in talk[i][: length[i]])
        completions.append(
            f"<think> {text} </think> <answer> {said[i]} </answer>"
            if in_tags[i]
            else f"{text} {said[i]}"
        )
    draft = SimpleNamespace(
        step=step,
        rng=rng,
        group=group,
        prompts=[f"add {left[g]} and {answers[g] - left[g]}" for g in group],
        gold=[str(answers[g]) for g in group],
        completions=completions,
        right=right,
        rewards={
            "correct": right.astype(float),
            "format": in_tags.astype(float),
        },
    )
    draft.n_tokens = np.array([len(c.split()) + 1 for c in completions])
    return draft


def policy_loss(advantage: Array, n: npt.NDArray[np.int64], kind: object, cap: object) -> float:
    """The policy loss at ratio 1, from its definition."""
    products = [float(a) * int(k) for a, k in zip(advantage, n, strict=True)]
    if kind == "grpo":
        return -sum(p / int(k) for p, k in zip(products, n, strict=True)) / len(n)
    if kind == "dr_grpo":
        assert isinstance(cap, int)
        return -sum(products) / (len(n) * cap)
    return -sum(products) / int(n.sum())


def _logged(
    rng: np.random.Generator, draft: SimpleNamespace, settings: Mapping[str, object]
) -> dict[str, float]:
    """What a trainer would log for the step."""
    n, beta = draft.n_tokens, settings["beta"]
    assert isinstance(beta, float)
    kl = 0.02 * float(np.exp(rng.normal(0, 0.1)))
    share = n.sum() / (64 * len(n)) if settings["loss_type"] == "dr_grpo" else 1.0
    loss = policy_loss(draft.advantage, n, settings["loss_type"], 64) + beta * kl * share
    spread = draft.total.reshape(-1, int((draft.group == 0).sum())).std(axis=1, ddof=1)
    row = {
        "loss": loss,
        "kl_ref": kl,
        "entropy": 1.0 + 0.03 * float(rng.normal()),
        "grad_norm_preclip": 0.5 * float(np.exp(rng.normal(0, 0.1))),
        "learning_rate": 1e-6,
        "reward_mean": float(draft.total.mean()),
        "reward_std": float(np.mean(spread)),
        "completion_length_mean": float(n.mean()),
        "completion_length_max": float(n.max()),
        "trained_tokens_mean": float(n.sum()),
        "truncation_rate": 0.0,
        "frac_zero_variance_groups": float(np.mean(spread < 1e-6)),
        "clip_frac_total": 0.0,
        "ratio_mean": 1.0,
        "step_time": 2.0 + 0.1 * float(rng.normal()),
    }
    scored = {k: v[np.isfinite(v)] for k, v in draft.rewards.items()}
    return row | {
        f"reward_part/{k}": float(v.mean()) if len(v) else math.nan for k, v in scored.items()
    }


def sample_capture(
    step: int = 1,
    *,
    seed: int = 0,
    rows: int = 64,
    width: int = 24,
    temperature: float = 1.0,
    moved: float = 0.5,
    behind: float = 0.0,
    pads: bool = False,
    dtype: Any = np.float32,
    **arrays: Any,
) -> Capture:
    """Tokens sampled from a small categorical policy, with that policy's own log-probs.

    `temperature`: the sampler's, against 1 in the trainer. `moved`: how far training has carried
    the policy from its reference; `behind`: how far the sampler's weights are behind on that way.
    `pads`: the pad token may be sampled, as any other word.
    """
    rng = np.random.default_rng(seed)
    world = np.random.default_rng(7)
    start, way = 1.5 * world.normal(size=(WORDS, WORDS)), world.normal(size=(WORDS, WORDS))
    start[:, STOP], way[:, STOP] = -0.5, 0.0
    if not pads:
        start[:, PAD] = -40.0
    log_ref, log_pi = _log_softmax(start), _log_softmax(start + moved * way)
    log_q = _log_softmax((start + (moved - behind) * way) / temperature)
    entropy = -(np.exp(log_pi) * log_pi).sum(axis=1)
    ids = np.full((rows, width), PAD, np.int64)
    state = np.full((rows, width), 2, np.int64)
    mask = np.zeros((rows, width), bool)
    alive, last = np.ones(rows, bool), np.full(rows, 2)
    for t in range(width):
        drawn = (log_q[last] + rng.gumbel(size=(rows, WORDS))).argmax(axis=1)
        state[:, t], mask[:, t] = last, alive
        ids[alive, t] = drawn[alive]
        alive, last = alive & (drawn != STOP), drawn
    prompt = np.arange(6) >= rng.integers(0, 3, rows)[:, None]
    made: dict[str, Any] = {
        "token_id": ids,
        "completion_mask": mask,
        "loss_mask": mask.copy(),
        "logp_new": np.where(mask, log_pi[state, ids], 0.0).astype(dtype),
        "logp_ref": np.where(mask, log_ref[state, ids], 0.0).astype(dtype),
        "entropy": np.where(mask, entropy[state], 0.0).astype(dtype),
        "prompt_token_id": np.where(prompt, 3, PAD),
        "prompt_mask": prompt,
        "advantage": group_advantages(rng.random(rows), np.arange(rows) // 8),
    }
    return make_capture(step, **{**made, **arrays})


def with_sides(capture: Capture, *, noise: float = 0.001, **sides: Any) -> Capture:
    """The same capture with all sides: trainer passes that repeat, an engine that is near."""
    new = capture.numbers("logp_new")
    mask, shown = capture.mask("completion_mask"), capture.mask("prompt_mask")
    assert new is not None
    assert mask is not None
    assert shown is not None
    rng = np.random.default_rng(capture.step)
    ids = np.concatenate([capture.arrays["prompt_token_id"], capture.arrays["token_id"]], axis=1)
    there = np.concatenate([shown, mask], axis=1)
    engine_ids = np.full(ids.shape, -1)
    for row, (own, real) in enumerate(zip(ids, there, strict=True)):
        engine_ids[row, : real.sum()] = own[real]
    made = {
        "logp_old": new,
        "logp_recheck": new,
        "logp_layout": new + 0.2 * noise * rng.normal(size=new.shape),
        "logp_engine": np.where(mask, new + noise * rng.normal(size=new.shape), np.nan),
        "source": np.where(mask, 3, 0),
        "prompt_source": np.where(shown, 2, 0),
        "engine_token_id": engine_ids,
        "expert_trainer": capture.arrays["token_id"] * 7,
        "expert_engine": capture.arrays["token_id"] * 7,
    }
    return replace(
        capture, arrays={**capture.arrays, **{n: np.asarray(a) for n, a in made.items()}, **sides}
    )


def with_record(
    run: Run,
    edit: Callable[[Capture], Capture] = with_sides,
    *,
    syncs: Sequence[Sync] = (),
    lag: int = 0,
) -> Run:
    """The same run with what a flight recorder keeps: sides, weight versions, deliveries."""
    dumps = {c.step: edit(c) for c in run.captures}
    steps = run.rollouts.steps.tolist()
    batches = {
        b.step: replace(
            b,
            policy_version=np.full(len(b), b.step - 1 - lag),
            seed=[f"{b.step}.{i}" for i in range(len(b))],
        )
        for b in run.rollouts.batches()
    }
    made = syncs or [
        Sync(
            s - 1,
            version=s - 1,
            engine_version=s - 1,
            tensors=(SyncedTensor("w", "a", "a"),),
            first_tokens=(FirstToken("one", 1, -0.4, -0.41), FirstToken("one", 2, -1.2, -1.19)),
        )
        for s in steps
    ]
    return replace(
        run,
        captures=Captures(list(dumps), dumps.__getitem__),
        rollouts=Rollouts(steps, lambda wanted: map(batches.__getitem__, wanted)),
        flight=Flight(
            list(dumps),
            lambda step: FlightStep(step, first_pass=True, policy_version=step - 1),
            syncs=made,
        ),
    )


def _log_softmax(x: Array) -> Array:
    return np.asarray(x - np.log(np.exp(x).sum(axis=1, keepdims=True)), float)


# ------------------------------------------------------------------------- the same run, changed


def relog(run: Run, **values: Any) -> Run:
    """The run with some signals replaced, added, or (None) taken away."""
    known = dict(run.signals.known)
    first = int(run.signals.steps[0]) if len(run.signals.steps) else 1
    for name, value in values.items():
        known.pop(name, None)
        if value is not None:
            known[name] = (
                value if isinstance(value, Signal) else make_signal(name, value, first_step=first)
            )
    return replace(run, signals=Signals(known))


def rebatch(run: Run, change: Callable[[RolloutBatch], RolloutBatch]) -> Run:
    """The run with each step's rollouts changed."""
    batches = {b.step: b for b in map(change, run.rollouts.batches())}
    return replace(
        run, rollouts=Rollouts(list(batches), lambda steps: map(batches.__getitem__, steps))
    )


def recapture(run: Run, change: Callable[[Capture], Capture]) -> Run:
    """The run with each capture changed."""
    found = {c.step: c for c in map(change, run.captures)}
    return replace(run, captures=Captures(list(found), found.__getitem__))


def reorder(batch: RolloutBatch, rows: Sequence[int]) -> RolloutBatch:
    """The batch with its rows in another order."""
    fields: dict[str, Any] = {
        name: [old[i] for i in rows]
        for name in ("prompts", "completions", "gold", "finish")
        if (old := getattr(batch, name)) is not None
    }
    fields |= {
        name: old[list(rows)]
        for name in ("group", "advantage", "total", "n_tokens")
        if (old := getattr(batch, name)) is not None
    }
    parts = {name: values[list(rows)] for name, values in batch.rewards.items()}
    return replace(batch, rewards=parts, **fields)


def reorder_groups(batch: RolloutBatch, order: Sequence[int]) -> RolloutBatch:
    """The batch with its groups in another order, numbered by their new places."""
    rows = [i for g in order for i in range(len(batch)) if batch.group[i] == g]
    place = {g: at for at, g in enumerate(order)}
    moved = reorder(batch, rows)
    return replace(moved, group=np.array([place[int(g)] for g in moved.group]))


def shift_steps(run: Run, by: int) -> Run:
    """The run with every step number moved."""
    known = {
        name: replace(
            s, steps=s.steps + by, nonfinite_steps=tuple(n + by for n in s.nonfinite_steps)
        )
        for name, s in run.signals.known.items()
    }
    moved = replace(
        run,
        signals=Signals(known),
        events=tuple(replace(e, step=None if e.step is None else e.step + by) for e in run.events),
    )
    moved = rebatch(moved, lambda b: replace(b, step=b.step + by))
    return recapture(moved, lambda c: replace(c, step=c.step + by))


def dates_moved(found: Mapping[str, Any], by: int) -> dict[str, Any]:
    """Metrics with every step number moved."""
    return {
        name: value + by if name in DATES and value is not None else value
        for name, value in found.items()
    }


DATES = {
    "constant_first_step",
    "first_bad_step",
    "fitted_from_step",
    "fitted_to_step",
    "first_resume_step",
    "last_good_step",
    "last_resume_step",
    "outlier_step",
    "quiet_step",
    "resume_step",
    "scale_step",
}


# -------------------------------------------------------------------------------------- fixtures


def _evidence(tool: str, run: Run, **args: Any) -> Evidence:
    found = run_tool(tool, run, args, evidence_id="E1")
    assert found.error is None, found.error
    _survives_json(found)
    return found


def _survives_json(found: Evidence) -> None:
    """What is saved is JSON in the strict sense, and comes back the same."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in the JSON of {found.tool}")

    text = found.model_dump_json()
    json.loads(text, parse_constant=refuse)
    assert Evidence.model_validate_json(text) == found


def _measure(tool: str, run: Run, **args: Any) -> dict[str, Any]:
    found = _evidence(tool, run, **args)
    assert found.status == "measured", found.summary
    assert found.metrics is not None
    assert found.summary
    return dict(found.metrics)


def _missing(tool: str, run: Run, **args: Any) -> str:
    found = _evidence(tool, run, **args)
    assert found.status == "no_data"
    assert found.metrics is None
    assert len(found.summary.split()) >= 3, "the text says what is missing"
    return found.summary


# Session scope: they hold no state, and properties may then use them.
@pytest.fixture(name="make_run", scope="session")
def _make_run() -> Callable[..., Run]:
    """Make a run by hand: `make_run(signals={...}, rollouts=[...], captures=[...])`."""
    return make_run


@pytest.fixture(name="make_signal", scope="session")
def _make_signal() -> Callable[..., Signal]:
    """Make a signal by hand: `make_signal(name, values, first_step)`."""
    return make_signal


@pytest.fixture(name="batch", scope="session")
def _batch() -> Callable[..., RolloutBatch]:
    """Make one step's rollouts by hand: `batch(3, rewards={"correct": [1, 0]}, size=2)`."""
    return make_batch


@pytest.fixture(name="capture", scope="session")
def _capture() -> Callable[..., Capture]:
    """Make a capture by hand: `capture(3, token_id=[[...]], loss_mask=[[...]])`."""
    return make_capture


@pytest.fixture(name="sample", scope="session")
def _sample() -> Callable[..., Capture]:
    """Sample a capture from the small policy: `sample(3, seed=1, temperature=1.6)`."""
    return sample_capture


@pytest.fixture(name="simulate", scope="session")
def _simulate() -> Callable[..., Run]:
    """Simulate a run: `simulate(seed=1, steps=60, edit=fault)`."""
    return simulate


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A simulated run in which nothing is wrong, with twelve captures and two checkpoints."""
    from synthetic.recorded import recorded as with_sources  # here: pages copy this file

    root = tmp_path_factory.mktemp("healthy")
    rng = np.random.default_rng(30)
    weights, saved = rng.normal(0, 0.02, 2000).astype("<f4"), []
    for step in (30, 60):
        folder = root / f"checkpoint-{step}"
        folder.mkdir()
        moments = [moments_of(rng.normal(0, 1e-3, (step, 50))) for _ in range(3)]
        save_torch(folder / "optimizer.pt", adam_state(*moments, step=step, rate=1e-6))
        save_torch(folder / "scaler.pt", {"scale": 65536.0, "_growth_tracker": step})
        weights = weights + rng.normal(0, 1e-6, 2000).astype("<f4")
        entry = {"dtype": "F32", "shape": [2000], "data_offsets": [0, weights.nbytes]}
        header = json.dumps({"layers.0.mlp": entry}).encode()
        stored = len(header).to_bytes(8, "little") + header + weights.tobytes()
        (folder / "model.safetensors").write_bytes(stored)
        saved.append(
            Checkpoint(step, folder, tuple(sorted(p.name for p in folder.iterdir())), step)
        )

    def log(values: dict[str, Array], steps: Array) -> None:
        values["ratio_max"] = np.ones(len(steps))

    run = simulate(
        6,
        dumps=12,
        log=log,
        checkpoints=tuple(saved),
        versions={"trl": "1.16.0"},
        replays=(simulate(7),),
    )
    run = with_record(run)
    syncs = run.flight.syncs
    run = with_sources(run)
    run.config = replace(run.config, values={**run.config.values, "generation.top_k": 0})
    evals = make_signal("eval/reward_mean", np.linspace(0.5, 0.6, 60), 1)
    run.signals = Signals({**run.signals.known, evals.name: evals}, run.signals.unknown)
    norms = (ParameterGroup("all", update_norm=1e-3, weight_norm=1.0),)
    names = tuple("abcd")
    stages = Stages(names, names, names)
    kept = {s.step: replace(s, first_pass=True, policy_version=s.step - 1) for s in run.flight}
    kept[30] = FlightStep(30, kept="last_good", stages=stages, parameters=norms)
    kept[31] = FlightStep(31, kept="first_bad", stages=stages, parameters=norms)
    run.flight = Flight(
        list(kept),
        kept.__getitem__,
        syncs=syncs,
        certificate=Certificate("2026-01-01", (CertifiedCheck("accumulation", "pass"),)),
        requested=dict(run.config.values),
    )
    (root / "loss.py").write_text("ratio = torch.exp(torch.clamp(logp - old_logp, -20, 20))\n")
    run.code = open_code(root / "loss.py")
    return with_calls(run)


@pytest.fixture(scope="session")
def sides() -> Callable[..., Capture]:
    """A capture with the log-probs of all sides: `sides(capture, logp_engine=...)`."""
    return with_sides


@pytest.fixture(scope="session")
def recorded() -> Callable[..., Run]:
    """A run with what a flight recorder keeps: `recorded(run, edit, lag=2)`."""
    return with_record


@pytest.fixture(name="judged", scope="session")
def _judged() -> Callable[..., Run]:
    """Give a run a judge: `judged(run, lambda batch: scores)`."""
    return with_judge


@pytest.fixture(name="words", scope="session")
def _words() -> Vocabulary:
    """The small policy's vocabulary: 0 pads, 1 stops, words from 2 on."""
    return vocabulary()


@pytest.fixture(name="advantages", scope="session")
def _advantages() -> Callable[..., Array]:
    """GRPO advantages from their definition."""
    return group_advantages


@pytest.fixture(scope="session")
def changed() -> SimpleNamespace:
    """The same run, changed: `relog`, `rebatch`, `recapture`, `reorder`, `shift_steps`, ..."""
    return SimpleNamespace(
        relog=relog,
        rebatch=rebatch,
        recapture=recapture,
        reorder=reorder,
        reorder_groups=reorder_groups,
        shift_steps=shift_steps,
        dates_moved=dates_moved,
    )


@pytest.fixture(scope="session")
def measure() -> Callable[..., dict[str, Any]]:
    """Run a tool that measures, and give its metrics: `measure("check_rows", run)`."""
    return _measure


@pytest.fixture(scope="session")
def evidence() -> Callable[..., Evidence]:
    """Run a tool and give the whole record."""
    return _evidence


@pytest.fixture(scope="session")
def missing() -> Callable[..., str]:
    """Run a tool that finds no data, and give what it says is missing."""
    return _missing
