"""A bandit whose log-probs go with its advantages, against them, or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, FloatArray, Run

TOOL = "measure_update_sign"
ARMS, ROWS, STEPS = 5, 24, 30

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Rule = Callable[[int, FloatArray, FloatArray], FloatArray]


def normalised(logits: FloatArray) -> FloatArray:
    return np.asarray(logits - np.log(np.exp(logits).sum()))


def along(step: int, gain: FloatArray, logits: FloatArray) -> FloatArray:
    """Up the gradient."""
    return logits + 0.01 * gain


def against(step: int, gain: FloatArray, logits: FloatArray) -> FloatArray:
    return logits - 0.01 * gain


def turned(step: int, gain: FloatArray, logits: FloatArray) -> FloatArray:
    return (along if step < 16 else against)(step, gain, logits)


def still(step: int, gain: FloatArray, logits: FloatArray) -> FloatArray:
    return logits


def flattened(step: int, gain: FloatArray, logits: FloatArray) -> FloatArray:
    """An entropy term that undoes more than the gradient does."""
    return np.asarray(logits + 0.01 * gain - 0.3 * (logits - logits.mean()))


def back_to_reference(step: int, gain: FloatArray, logits: FloatArray) -> FloatArray:
    """A KL term that does, to a reference that is not flat."""
    return np.asarray(logits + 0.01 * gain - 0.3 * (logits - FIRST))


def at_random(step: int, gain: FloatArray, logits: FloatArray) -> FloatArray:
    return logits + 0.1 * np.random.default_rng(step).normal(size=ARMS)


FIRST = np.array([0.5, 0.2, -0.2, 0.4, 0.0])


def bandit(
    make_run: MakeRun, rule: Rule, *, every: int = 1, prompts: int = 1, beta: float | None = 0.0,
    ref: bool = False,
) -> Run:  # fmt: skip
    """Arm 0 is right. One prompt, or as many as said in turn."""
    rng, logits, captures = np.random.default_rng(1), FIRST.copy(), []
    for step in range(1, STEPS + 1):
        own = normalised(logits)
        arm = rng.choice(ARMS, size=ROWS, p=np.exp(own))
        reward = (arm == 0).astype(float)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
        arrays: dict[str, Any] = {
            "token_id": arm[:, None],
            "logp_old": own[arm][:, None],
            "loss_mask": np.ones((ROWS, 1), bool),
            "advantage": advantage,
            "prompt_token_id": np.full((ROWS, 2), [90, 91 + step % prompts]),
            "prompt_mask": np.ones((ROWS, 2), bool),
        }
        if ref:
            arrays["logp_ref"] = normalised(FIRST)[arm][:, None]
        if step % every == 0:
            captures.append(Capture(step, arrays, {}))
        gain = np.bincount(arm, weights=advantage, minlength=ARMS)
        logits = rule(step, gain - gain.sum() * np.exp(own), logits)
    config = {} if beta is None else {"beta": beta}
    return make_run(signals={"loss": np.zeros(STEPS)}, captures=captures, config=config)


def test_updates_that_follow_the_advantages(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, bandit(make_run, along))
    assert found["partial_correlation"] > 0.8
    assert (found["share_against"], found["first_bad_step"], found["pull_unknown"]) == (
        0,
        None,
        False,
    )
    assert found["z"] > 8


def test_updates_against_them(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, bandit(make_run, against))
    assert found["partial_correlation"] < -0.8
    assert (found["share_against"], found["first_bad_step"], found["from_start"]) == (1, 1, True)
    assert found["z"] < -8


def test_a_sign_that_turns_is_dated(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, bandit(make_run, turned))
    assert found["partial_correlation"] < -0.8
    assert (found["last_good_step"], found["first_bad_step"], found["sampled"]) == (8, 16, True)


@pytest.mark.parametrize("rule", [flattened, at_random])
def test_other_pulls_are_no_turned_sign(make_run: MakeRun, measure: Measure, rule: Rule) -> None:
    found = measure(TOOL, bandit(make_run, rule))
    assert found["z"] > -4


def test_a_pull_to_the_reference(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, bandit(make_run, back_to_reference, beta=5.0, ref=True))
    assert (found["pull_unknown"], found["z"] > -4) == (False, True)
    for beta in (5.0, None):
        assert measure(TOOL, bandit(make_run, back_to_reference, beta=beta))["pull_unknown"]


def test_weights_that_stand_still_go_nowhere(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, bandit(make_run, still))
    assert (found["partial_correlation"], found["z"], found["first_bad_step"]) == (0, 0, None)


@pytest.mark.parametrize(("every", "prompts"), [(2, 1), (1, 3)])
def test_contexts_that_do_not_come_again(
    make_run: MakeRun, missing: Callable[..., str], every: int, prompts: int
) -> None:
    run = bandit(make_run, against, every=every, prompts=prompts)
    assert "come again" in missing(TOOL, run)
