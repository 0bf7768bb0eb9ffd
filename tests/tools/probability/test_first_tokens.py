"""First tokens of fixed prompts: the version that fits, other temperatures, what is no fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import FirstToken, Flight, Sync
from firstbad.tools.run import FloatArray, Run

TOOL = "compare_first_tokens"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
TOKENS, PROMPTS = 8, ("a", "b")


def weights(n: int, *, move: float = 0.2) -> list[FloatArray]:
    """(P, K) log-probs of each version: a walk, normalised."""
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(len(PROMPTS), TOKENS))
    found = []
    for _ in range(n):
        logits = logits + move * rng.normal(size=logits.shape)
        found.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    return found


def ledger(trainer: Sequence[FloatArray], engine: Sequence[FloatArray]) -> list[Sync]:
    return [
        Sync(
            step,
            first_tokens=tuple(
                FirstToken(prompt, k, float(ours[p, k]), float(theirs[p, k]))
                for p, prompt in enumerate(PROMPTS)
                for k in range(TOKENS)
            ),
        )
        for step, (ours, theirs) in enumerate(zip(trainer, engine, strict=True))
    ]


def measured(
    make_run: MakeRun, measure: Measure, trainer: Sequence[FloatArray], engine: Sequence[FloatArray]
) -> dict[str, Any]:
    run = make_run(signals={"loss": np.zeros(20)}, flight=Flight(syncs=ledger(trainer, engine)))
    return measure(TOOL, run)


def test_the_weights_sent_fit(make_run: MakeRun, measure: Measure) -> None:
    sent = weights(12)
    found = measured(make_run, measure, sent, sent)
    assert (found["n_deliveries"], found["n_tokens"]) == (12, 12 * 16)
    assert (found["difference"], found["n_behind"], found["first_bad_step"]) == (0, 0, None)


def test_weights_that_stay_behind_are_named_and_dated(make_run: MakeRun, measure: Measure) -> None:
    sent = weights(12)
    served = [*sent[:6], *[sent[5]] * 6]
    found = measured(make_run, measure, sent, served)
    assert (found["n_behind"], found["fitting_step"], found["fitting_difference"]) == (6, 5, 0)
    assert (found["last_good_step"], found["first_bad_step"]) == (6, 7)
    away = np.mean([np.abs(sent[i] - sent[5]).mean() for i in range(6, 12)])
    assert found["behind_difference"] == pytest.approx(away, abs=1e-6)


def test_one_delivery_late(make_run: MakeRun, measure: Measure) -> None:
    sent = weights(12)
    found = measured(make_run, measure, sent, [*sent[:4], sent[3], *sent[5:]])
    assert (found["n_behind"], found["first_bad_step"], found["last_bad_step"]) == (1, 5, 5)


def test_weights_of_always_the_first_version(make_run: MakeRun, measure: Measure) -> None:
    sent = weights(12)
    found = measured(make_run, measure, sent, [sent[0]] * 12)
    assert (found["n_behind"], found["fitting_step"], found["last_good_step"]) == (11, 0, 1)


def averages(sent: Sequence[FloatArray], keeps: float) -> list[FloatArray]:
    """What a moving average of the weights answers, in logits."""
    served = [sent[0]]
    for now in sent[1:]:
        mixed = keeps * served[-1] + (1 - keeps) * now
        served.append(mixed)
    return [w - np.log(np.exp(w).sum(axis=1, keepdims=True)) for w in served]


@pytest.mark.parametrize("keeps", [0.8, 0.9])
def test_a_moving_average_is_no_older_version(
    make_run: MakeRun, measure: Measure, keeps: float
) -> None:
    sent = weights(40, move=0.05)
    found = measured(make_run, measure, sent, averages(sent, keeps))
    assert (found["n_behind"], found["first_bad_step"]) == (0, None)
    assert found["n_averaged"] >= 2
    assert found["average_weight"] == pytest.approx(keeps, abs=0.02)
    assert found["averaged_difference"] < 0.5 * found["version_difference"]


def test_an_average_that_stops_is_behind_from_there_on(make_run: MakeRun, measure: Measure) -> None:
    sent = weights(24, move=0.1)
    served = averages(sent, 0.5)
    found = measured(make_run, measure, sent, [*served[:12], *[served[11]] * 12])
    assert found["n_behind"] >= 10
    assert found["first_bad_step"] in (13, 14, 15)


def test_one_delivery_late_each_time_is_no_average(make_run: MakeRun, measure: Measure) -> None:
    """The weights move straight on, so that the middle of two answers fits as well."""
    way = np.random.default_rng(2).normal(size=(2, TOKENS))
    way -= way.mean(axis=1, keepdims=True)
    sent = [0.05 * i * way for i in range(12)]
    found = measured(make_run, measure, sent, [sent[0], *sent[:-1]])
    assert (found["n_behind"], found["n_averaged"]) == (11, 0)
    assert found["fitting_share"] == 0


@pytest.mark.parametrize("noise", [0.001, 0.03, 0.3])
def test_another_arithmetic_fits_no_older_version(
    make_run: MakeRun, measure: Measure, noise: float
) -> None:
    """The weights hardly move, so that an engine that is off fits many versions about as well."""
    sent = weights(12, move=0.01)
    rng = np.random.default_rng(8)
    found = measured(make_run, measure, sent, [w + noise * rng.normal(size=w.shape) for w in sent])
    assert found["n_behind"] == 0
    assert found["difference"] == pytest.approx(noise * np.sqrt(2 / np.pi), rel=0.15)


def test_another_temperature_is_a_slope(make_run: MakeRun, measure: Measure) -> None:
    sent = weights(12)
    warm = [w / 0.7 - np.log(np.exp(w / 0.7).sum(axis=1, keepdims=True)) for w in sent]
    found = measured(make_run, measure, sent, warm)
    assert found["slope"] == pytest.approx(1 / 0.7, abs=1e-6)
    assert (found["slope_fit"], found["n_behind"]) == (1.0, 0)


def test_other_tokens_each_time(make_run: MakeRun, measure: Measure) -> None:
    """The likeliest tokens change; versions are compared on those that both have."""
    sent = weights(12)
    served = [*sent[:6], *[sent[5]] * 6]
    kept = [replace(s, first_tokens=s.first_tokens[s.step % 4 :]) for s in ledger(sent, served)]
    found = measure(TOOL, make_run(signals={"loss": np.zeros(20)}, flight=Flight(syncs=kept)))
    assert (found["n_behind"], found["fitting_step"]) == (6, 5)


def test_one_side_alone_is_nothing(make_run: MakeRun, missing: Callable[..., str]) -> None:
    bare = [Sync(s, first_tokens=(FirstToken("a", 1, -0.5, None),)) for s in range(4)]
    run = make_run(signals={"loss": np.zeros(4)}, flight=Flight(syncs=bare))
    assert "first tokens" in missing(TOOL, run)
