"""log(p + eps) against log-softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, Run, Vocabulary

TOOL = "fit_added_eps"

MakeRun = Callable[..., Run]
Sample = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def run_of(make_run: MakeRun, sample: Sample, words: Vocabulary) -> Callable[..., Run]:
    def make(bend: Callable[[Any], Any], *, engine: bool = True, noise: float = 0.002) -> Run:
        """Log-probs bent by a function of the probability; the engine has its own noise."""
        dumps = []
        for step in (1, 20, 40):
            one = sample(step, seed=step)
            exact = one.numbers("logp_new")
            assert exact is not None
            rng = np.random.default_rng(step)
            arrays = dict(one.arrays) | {"logp_new": bend(exact).astype(np.float32)}
            if engine:
                arrays["logp_engine"] = exact + noise * rng.normal(size=exact.shape)
            dumps.append(Capture(step, arrays, {}))
        return make_run(captures=dumps, vocabulary=words)

    return make


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_the_constant_is_found(run_of: Callable[..., Run], measure: Measure, eps: float) -> None:
    found = measure(TOOL, run_of(lambda logp: np.log(np.exp(logp) + eps), noise=1e-4))
    assert found["n_with"] == 3
    assert found["eps"] == pytest.approx(eps, rel=0.05)
    assert found["explained"] > 0.95
    assert found["from_start"]


@pytest.mark.parametrize(
    "bend",
    [
        lambda logp: logp,
        lambda logp: 1.2 * logp,  # another temperature, nearly
        lambda logp: logp - 0.05,  # a kept mass of 95 %
        lambda logp: logp + 0.05,
        lambda logp: np.round(64 * logp) / 64,  # few bits
        lambda logp: logp + 0.02 * np.sin(1000 * logp),  # another kernel
    ],
)
def test_other_differences_are_no_constant(
    run_of: Callable[..., Run], measure: Measure, bend: Callable[[Any], Any]
) -> None:
    found = measure(TOOL, run_of(lambda logp: np.minimum(bend(logp), 0.0)))
    assert found["n_with"] == 0
    assert found["eps"] is None
    assert found["first_bad_step"] is None


def test_tokens_that_are_sure_lie_above_zero(run_of: Callable[..., Run], measure: Measure) -> None:
    """No engine: log(1 + eps) of a token with probability 1 is above 0."""

    def bend(logp: Any) -> Any:
        return np.log(np.exp(np.where(logp > -0.5, 0.0, logp)) + 1e-4)

    found = measure(TOOL, run_of(bend, engine=False))
    assert found["n_with"] == 3
    assert found["eps"] == pytest.approx(1e-4, rel=0.01)
    assert found["above_zero_share"] > 0.01
    assert found["explained"] is None
    sure = measure(TOOL, run_of(lambda p: np.where(p > -0.5, 0.0, p), engine=False))
    assert (sure["n_with"], sure["above_zero_share"]) == (0, 0.0)


def test_few_tokens(make_run: MakeRun, sample: Sample, missing: Callable[..., str]) -> None:
    few = make_run(captures=[sample(1, rows=4)])
    assert "no captures with 100 log-probs" in missing(TOOL, few)
