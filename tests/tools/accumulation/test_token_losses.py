"""Terms of single tokens by loss type, at ratios on both sides of 1."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from firstbad.tools.accumulation.token_losses import TokenLoss
from firstbad.tools.errors import NoData
from firstbad.tools.run import Run

MakeRun = Callable[..., Run]
LOGP = math.log(0.2)


def term(
    make_run: MakeRun,
    ratio: float,
    advantage: float,
    settings: dict[str, object],
    framework: str = "trl",
) -> tuple[float, float]:
    """Policy term of a row of one token whose new log-prob is log 0.2, and without clipping."""
    run = make_run(config={"epsilon": 0.2, **settings}, framework=framework)
    new = np.array([[LOGP, -9.0]])
    mask = np.array([[True, False]])
    given = np.full((1, 2), advantage)
    found = TokenLoss.of(run).terms(new, new - math.log(ratio), given, mask)
    return float(found[0][0, 0]), float(found[1][0, 0])


@pytest.mark.parametrize(
    ("settings", "ratio", "advantage", "expected"),
    [
        # min(ratio A, clip(ratio) A)
        ({"loss_type": "dapo"}, 1.5, 2.0, -2.4),
        ({"loss_type": "dapo"}, 0.5, 2.0, -1.0),
        ({"loss_type": "dapo"}, 0.5, -2.0, 1.6),
        ({"loss_type": "dapo"}, 1.5, -2.0, 3.0),
        ({"loss_type": "dapo", "delta": 1.3}, 1.5, -2.0, 2.6),
        ({"loss_type": "dapo", "epsilon_high": 0.6}, 1.5, 2.0, -3.0),
        # the cap itself in TRL, which is epsilon where it is not set
        ({"loss_type": "cispo", "epsilon_high": 5.0}, 1.5, 2.0, -1.5 * 2 * LOGP),
        ({"loss_type": "cispo", "epsilon_high": 1.2}, 1.5, 2.0, -1.2 * 2 * LOGP),
        ({"loss_type": "cispo"}, 1.0, 2.0, -0.2 * 2 * LOGP),
        ({"loss_type": "gpg"}, 1.5, 2.0, -2 * LOGP),
        # w^k e^(l (1 - w)): k 2 and l 3 for A above 0, 3 and 2 below
        ({"loss_type": "vespo"}, 1.0, 2.0, -2 * LOGP),
        ({"loss_type": "vespo"}, 2.0, 2.0, -4 * math.exp(-3) * 2 * LOGP),
        ({"loss_type": "vespo"}, 2.0, -1.0, 8 * math.exp(-2) * LOGP),
        ({"loss_type": "vespo", "vespo_k_pos": 1}, 2.0, 2.0, -2 * math.exp(-3) * 2 * LOGP),
        # 4/t sigmoid(t (w - 1)), t 1.05 below 0
        ({"loss_type": "sapo"}, 1.0, 2.0, -4.0),
        ({"loss_type": "sapo"}, 1.0, -1.0, 2 / 1.05),
        ({"loss_type": "sapo"}, 2.0, 1.0, -4 / (1 + math.exp(-1))),
    ],
)
def test_the_term_by_hand(
    make_run: MakeRun,
    settings: dict[str, object],
    ratio: float,
    advantage: float,
    expected: float,
) -> None:
    assert term(make_run, ratio, advantage, settings)[0] == pytest.approx(expected)


def test_an_offset_is_no_cap_outside_of_trl(make_run: MakeRun) -> None:
    config: dict[str, object] = {"loss_type": "cispo", "epsilon_high": 0.28}
    found = term(make_run, 1.5, 2.0, config, "verl")
    assert found == pytest.approx((-1.28 * 2 * LOGP, -1.5 * 2 * LOGP))
    assert term(make_run, 1.0, 2.0, config, "verl")[0] == pytest.approx(-2 * LOGP)


def test_the_ratio_of_a_sequence_is_that_of_its_mean(make_run: MakeRun) -> None:
    config = {"epsilon": 0.2, "loss_type": "luspo", "importance_sampling_level": "sequence"}
    loss = TokenLoss.of(make_run(config=config))
    new, mask = np.zeros((1, 3)), np.array([[True, True, False]])
    old = np.array([[-math.log(1.1), 0.0, -5.0]])
    policy, _ = loss.terms(new, old, np.ones((1, 3)), mask)
    assert policy[0, :2] == pytest.approx([-math.sqrt(1.1)] * 2)
    assert loss.sum_of_rows(policy, mask)[0] == pytest.approx(-2 * math.sqrt(1.1))


@pytest.mark.parametrize(("kind", "expected"), [("grpo", 2.0), ("sapo", 2.0), ("dapo", 6.0)])
def test_rows_are_summed_or_averaged(make_run: MakeRun, kind: str, expected: float) -> None:
    loss = TokenLoss.of(make_run(config={"epsilon": 0.2, "loss_type": kind}))
    values, mask = np.array([[1.0, 2.0, 3.0, 99.0]]), np.array([[True, True, True, False]])
    assert loss.sum_of_rows(values, mask)[0] == expected


def test_a_type_that_is_not_known_is_named(make_run: MakeRun) -> None:
    with pytest.raises(NoData, match="not computed for the loss type mine"):
        TokenLoss.of(make_run(config={"epsilon": 0.2, "loss_type": "mine"}))
