"""Runs with holes: every tool measures or says what is missing, and none breaks or stores NaN."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.registry import tools
from firstbad.tools.run import Capture, Config, Event, RolloutBatch, Run

STEPS = 14

Values = dict[str, npt.NDArray[np.float64]]
Steps = npt.NDArray[np.float64]
Fault = Callable[[SimpleNamespace], None]


def parts(value: float, *names: str, every: int = 1) -> Fault:
    """Some reward parts have one value in every so many steps."""

    def edit(d: SimpleNamespace) -> None:
        if d.step % every == 0:
            for name in names:
                d.rewards[name][:] = value

    return edit


def field(name: str, value: object) -> Fault:
    return lambda d: setattr(d, name, [value] * 32)


def lost_advantage(d: SimpleNamespace) -> None:
    d.advantage[3] = np.nan


def logged(value: float, every: int = 1) -> Callable[[Values, Steps], None]:
    def log(values: Values, steps: Steps) -> None:
        for series in values.values():
            series[::every] = value

    return log


BOTH = ("correct", "format")
SIMULATED: dict[str, dict[str, Any]] = {
    "one step": {"steps": 1, "dumps": 1},
    "six steps": {"steps": 6, "dumps": 2},
    "one group": {"groups": 1},
    "steps from 0": {"first_step": 0, "dumps": 3},
    "an advantage is missing": {"train": lost_advantage},
    "the outcome is missing now and then": {"edit": parts(np.nan, "correct", every=3)},
    "nothing was ever scored": {"edit": parts(np.nan, *BOTH)},
    "everything is right": {"edit": parts(1.0, *BOTH)},
    "everything is wrong": {"edit": parts(0.0, *BOTH)},
    "rewards are huge": {"edit": parts(1e30, "correct", every=2)},
    "empty texts": {"edit": field("completions", "")},
    "one prompt": {"edit": field("prompts", "add 1 and 1")},
    "no gold answer": {"edit": field("gold", None)},
    "everything logged is 0": {"log": logged(0.0), "steps": 30},
    "nothing logged is a number": {"log": logged(np.nan)},
    "some of what is logged is Inf": {"log": logged(np.inf, every=5)},
}


def capture_with(**arrays: Any) -> Callable[[Capture], Capture]:
    def change(c: Capture) -> Capture:
        shape = np.shape(c.arrays["token_id"])
        made = {k: np.full(shape, v) if np.isscalar(v) else v for k, v in arrays.items()}
        return replace(c, arrays={**c.arrays, **made})

    return change


def no_rows(c: Capture) -> Capture:
    return replace(c, arrays={k: v[:0] for k, v in c.arrays.items()})


CAPTURED: dict[str, Callable[[Capture], Capture]] = {
    "captures without rows": no_rows,
    "captured log-probs are NaN": capture_with(logp_new=np.nan),
    "captured log-probs are -Inf": capture_with(logp_new=-np.inf),
    "a policy without doubt": capture_with(logp_new=0.0, entropy=0.0, logp_ref=0.0),
    "captures of padding alone": capture_with(token_id=0, loss_mask=0, completion_mask=0),
    "advantages per token": capture_with(advantage=1.0),
    "a loss mask over prompt and completion": capture_with(loss_mask=np.ones((64, 30))),
    "a loss mask that is one token short": capture_with(loss_mask=np.ones((64, 23))),
}


def no_parts(b: RolloutBatch) -> RolloutBatch:
    return replace(b, rewards={}, total=b.rewards["correct"])


def fewer_parts(b: RolloutBatch) -> RolloutBatch:
    return replace(b, rewards={"correct": b.rewards["correct"]}) if b.step > 7 else b


def groups_of_one(b: RolloutBatch) -> RolloutBatch:
    return replace(b, group=np.arange(len(b)))


BATCHES: dict[str, Callable[[RolloutBatch], RolloutBatch]] = {
    "a total and no parts": no_parts,
    "a part that ends": fewer_parts,
    "groups of one": groups_of_one,
}

CONFIGS: dict[str, Mapping[str, object]] = {
    "no config": {},
    "a config of the model only": {"vocab_size": 12},
    "too few weights": {"reward_weights": [1.0], "beta": 0.1},
    "weights that are no numbers": {"reward_weights": ["a", None]},
    "a warm-up longer than the run": {
        "learning_rate": 1e-6,
        "lr_scheduler_type": "linear",
        "max_steps": 3,
        "warmup_steps": 9,
    },
    "settings of 0": {
        "beta": 0,
        "max_completion_length": 0,
        "max_grad_norm": 0,
        "num_generations": 0,
        "loss_type": "dr_grpo",
    },
    "no accumulation steps": {"gradient_accumulation_steps": 0},
    "micro-batches of no rows": {"per_device_train_batch_size": 0},
}


@pytest.fixture(name="base", scope="module")
def _base(simulate: Callable[..., Run]) -> Run:
    return simulate(0, steps=STEPS, dumps=4)


def names() -> list[str]:
    return [*SIMULATED, *CAPTURED, *BATCHES, *CONFIGS, "no tokenizer", "resumed at step 1"]


@pytest.mark.parametrize("name", names())
def test_no_tool_breaks(
    name: str,
    base: Run,
    simulate: Callable[..., Run],
    changed: SimpleNamespace,
    evidence: Callable[..., Evidence],
) -> None:
    if name in SIMULATED:
        run = simulate(0, **{"steps": STEPS, **SIMULATED[name]})
    elif name in CAPTURED:
        run = changed.recapture(base, CAPTURED[name])
    elif name in BATCHES:
        run = changed.rebatch(base, BATCHES[name])
    elif name in CONFIGS:
        run = replace(base, config=Config(CONFIGS[name]))
    elif name == "no tokenizer":
        run = replace(base, vocabulary=None)
    else:
        events = (Event("resume", 1, "resumed", "a.log"), Event("resume", None, "resumed", "a.log"))
        run = replace(base, events=events)
    for tool in tools():
        found = evidence(tool, run)  # fails on an error, and on NaN in the JSON
        assert found.status in ("measured", "no_data")
        assert found.summary
