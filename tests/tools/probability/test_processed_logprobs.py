"""Log-probs that are a clean function of the other side's: temperature, kept mass, penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.run import Capture, Run

TOOL = "fit_processing"
Array = npt.NDArray[np.float64]
MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


def softmax(logits: Array) -> Array:
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def cut(p: Array, *, top_p: float = 1.0, top_k: int = 0) -> Array:
    """(V,) the same with its tail cut, renormalised."""
    order = np.argsort(-p)
    before = np.cumsum(p[order]) - p[order]
    kept = before < top_p
    if top_k:
        kept[top_k:] = False
    out = np.zeros_like(p)
    out[order[kept]] = p[order[kept]]
    return np.asarray(out / out.sum())


def capture_of(
    make: MakeCapture, trainer: Array, sampler: Array, engine: Array, *, seed: int = 0
) -> Capture:
    """2,000 tokens drawn from one distribution (V,); trainer and engine report their own."""
    ids = np.random.default_rng(seed).choice(len(sampler), (40, 50), p=sampler)
    logp = np.log(trainer)
    entropy = -float(trainer @ logp)
    return make(
        1,
        token_id=ids,
        source=np.full(ids.shape, 3),
        logp_old=logp[ids],
        logp_engine=np.log(np.maximum(engine, 1e-300))[ids],
        entropy=np.full(ids.shape, entropy),
        varentropy=np.full(ids.shape, float(trainer @ logp**2) - entropy**2),
    )


@pytest.mark.parametrize(
    ("settings", "mass", "within"),
    [
        ({"top_p": 0.95}, 0.950, 0.001),
        ({"top_k": 20}, 0.185, 0.001),
        ({"top_k": 50}, 0.279, 0.001),
        ({"top_p": 1.0}, 1.0, 1e-6),
    ],
)
def test_the_ratio_is_the_kept_probability(
    settings: dict[str, Any], mass: float, within: float, capture: MakeCapture,
    make_run: MakeRun, measure: Measure,
) -> None:  # fmt: skip
    p = softmax(np.random.default_rng(0).normal(0, 2.5, 32_000))
    q = cut(p, **settings)
    kept = float(p[q > 0].sum())
    m = measure(TOOL, make_run(captures=[capture_of(capture, p, q, q)]))
    assert kept == pytest.approx(mass, abs=within)
    assert m["kept_mass"] == pytest.approx(kept, abs=1e-5)
    assert m["kept_least"] == pytest.approx(kept, abs=1e-5)
    assert m["slope_size"] < 1e-3
    assert m["first_bad_step"] == (1 if kept < 0.99 else None)
    assert m["one_sided"] == (1.0 if kept < 0.99 else pytest.approx(0.5, abs=0.5))


@pytest.mark.parametrize(("temperature", "mean", "median"), [(0.6, 1.78, 2.25), (1.0, 1.0, 1.0)])
def test_raw_log_probs_against_a_temperature(
    temperature: float, mean: float, median: float, capture: MakeCapture, make_run: MakeRun,
    measure: Measure,
) -> None:  # fmt: skip
    logits = np.random.default_rng(22).normal(0, 3, 5_000)
    raw, cold = softmax(logits), softmax(logits / temperature)
    dumped = capture_of(capture, cold, cold, raw)
    old, engine = dumped.numbers("logp_old"), dumped.numbers("logp_engine")
    assert old is not None
    assert engine is not None
    m = measure(TOOL, make_run(captures=[dumped], config={"temperature": temperature}))
    assert m["kept_mass"] == pytest.approx(float(np.exp(old - engine).mean()), abs=1e-4)
    assert m["kept_mass"] == pytest.approx(mean, abs=0.03)
    assert float(np.median(np.exp(old - engine))) == pytest.approx(median, abs=0.03)
    if temperature == 1.0:
        assert (m["slope"], m["raw_distance"], m["first_bad_step"]) == (0.0, None, None)
    else:
        assert m["temperature_ratio"] == pytest.approx(1 / 0.6, abs=1e-4)
        assert m["slope_fit"] == pytest.approx(1.0, abs=1e-4)
        assert m["raw_distance"] < 1e-3
        assert m["undivided_distance"] == pytest.approx(2 * np.log(1 / 0.6), abs=1e-3)
        assert m["from_start"]


def places(seed: int, rows: int = 60, width: int = 40, words: int = 30) -> tuple[Array, Array]:
    """Logits of a place of its own for each token (R, T, V), and tokens drawn from them."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(rows, width, words)) * rng.uniform(0.3, 1.5, (rows, width, 1))
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=-1).astype(float)


def captured(make: MakeCapture, trainer: Array, engine: Array, ids: Array) -> Capture:
    at = ids.astype(int)[..., None]
    p, q = np.log(softmax(trainer)), np.log(softmax(engine))
    entropy = -(np.exp(p) * p).sum(axis=-1)
    return make(
        1,
        token_id=ids.astype(int),
        source=np.full(ids.shape, 3),
        logp_old=np.take_along_axis(p, at, -1)[..., 0],
        logp_engine=np.take_along_axis(q, at, -1)[..., 0],
        entropy=entropy,
        varentropy=(np.exp(p) * p**2).sum(axis=-1) - entropy**2,
    )


@pytest.mark.parametrize("temperature", [0.7, 0.95, 1.3])
def test_a_temperature_is_found_over_places_of_any_entropy(
    temperature: float, capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    logits, ids = places(1)
    m = measure(TOOL, make_run(captures=[captured(capture, logits, logits / temperature, ids)]))
    assert m["temperature_ratio"] == pytest.approx(temperature, rel=0.01)
    assert m["slope_fit"] > 0.98


def test_noise_is_no_function(capture: MakeCapture, make_run: MakeRun, measure: Measure) -> None:
    logits, ids = places(2)
    noisy = logits + 0.3 * np.random.default_rng(9).normal(size=logits.shape)
    m = measure(TOOL, make_run(captures=[captured(capture, logits, noisy, ids)]))
    assert m["slope_fit"] < 0.1
    assert 0.35 < m["one_sided"] < 0.7
    assert m["repeat_fit"] < 0.02
    assert m["first_bad_step"] is None


@pytest.mark.parametrize(("penalty", "found"), [(1.3, True), (1.0, False)])
def test_a_penalty_on_repetition_shows_on_repeated_tokens(
    penalty: float, found: bool, capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    logits, ids = places(3)
    bent = logits.copy()
    for row in range(len(ids)):
        for t in range(1, ids.shape[1]):
            stood = np.unique(ids[row, :t].astype(int))
            z = bent[row, t, stood]
            bent[row, t, stood] = np.where(z > 0, z / penalty, z * penalty)
    m = measure(TOOL, make_run(captures=[captured(capture, logits, bent, ids)]))
    assert (m["repeat_gap"] < -0.1) is found
    assert (m["repeat_fit"] > 0.3) is found


def test_a_setting_that_changes_is_dated(
    capture: MakeCapture, make_run: MakeRun, measure: Measure
) -> None:
    captures = []
    for step in range(1, 9):
        logits, ids = places(step, rows=10)
        hot = logits / (1.4 if step >= 5 else 1.0)
        captures.append(capture(step, **captured(capture, logits, hot, ids).arrays))
    m = measure(TOOL, make_run(captures=captures))
    assert (m["last_good_step"], m["first_bad_step"], m["steady"]) == (4, 5, True)
    assert m["temperature_ratio"] == pytest.approx(1.4, rel=0.01)
    assert m["n_tokens"] == 4 * 400


def test_nothing_to_fit(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert missing(TOOL, make_run()).startswith("no captures of fresh rollouts")
