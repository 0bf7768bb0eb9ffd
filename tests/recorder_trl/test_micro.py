"""Slopes, clip bounds and figures of one micro-batch, computed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from firstbad_recorder.trl.figures import ledger_of, numbers_of, trail_of
from firstbad_recorder.trl.gradients import Heard
from firstbad_recorder.trl.micro import (
    Micro,
    Pass,
    Settings,
    denominator,
    settings_of_loss,
    weighed,
)
from firstbad_recorder.trl.rows import Generation

R, W = 4, 6


def loss_settings(**more: Any) -> Settings:
    trainer: dict[str, Any] = {
        "loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.3, "beta": 0.0,
        "importance_sampling_level": "token", "args": SimpleNamespace(), **more,
    }  # fmt: skip
    return settings_of_loss(SimpleNamespace(**trainer))


def make_micro(moved: Any = 0.0, scale: float = 1.0, **inputs: Any) -> Micro:
    """Log-probs of -1 and older ones; the advantage of rows is 1, -1, 1, -1."""
    logp = torch.full((R, W), -1.0) + torch.zeros(R, W)
    width = torch.ones(R, W + 2).long()
    passed = Pass(width, width, W, logp, None, lambda: None, scale=scale)
    given = {
        "completion_mask": torch.ones(R, W).long(),
        "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0]),
        "old_per_token_logps": logp - torch.as_tensor(moved),
        **inputs,
    }
    rows: list[dict[str, object]] = [{"sample": str(i)} for i in range(R)]
    return Micro(given, Generation(1, rows), list(range(R)), 0, 0, passed=passed, scale=scale)


def take(micro: Micro, per_token: Any, n: float) -> None:
    """The gradient of a mean over `n` tokens, as the backward pass would bring it."""
    assert micro.passed is not None
    micro.passed.take(torch.zeros(R, W) + per_token * micro.scale / n)


def divided(micro: Micro, settings: Settings) -> Any:
    part = weighed(micro, settings)
    return denominator(micro, part.mask, part.slopes, settings.by_rows)


@pytest.mark.parametrize("shape", ["row", "rows", "token"])
def test_engine_weights_of_a_row_count_for_all_its_tokens(shape: str) -> None:
    weight = torch.tensor([[0.5], [0.5], [0.25], [2.0]])
    given = {"row": weight[:, 0], "rows": weight, "token": weight.expand(-1, W)}[shape]
    micro = make_micro(importance_sampling_ratio=given)
    take(micro, -micro.advantage * weight, 24.0)
    assert divided(micro, loss_settings()) == (pytest.approx(24.0), "tokens")


def test_engine_weights_of_vespo_are_no_factor_of_the_slope() -> None:
    micro = make_micro(importance_sampling_ratio=torch.ones(R, W))
    take(micro, -micro.advantage, 24.0)
    settings = loss_settings(loss_type="vespo")
    assert divided(micro, settings) == (pytest.approx(24.0), "tokens")
    micro = make_micro(importance_sampling_ratio=torch.full((R, W), 0.5))
    take(micro, -micro.advantage * 0.1, 24.0)  # its weight is a function of their product
    assert divided(micro, settings) == (None, "")
    assert bool(weighed(micro, settings).mask.all())


def test_cispo_caps_at_the_upper_bound_itself_and_clips_nothing_below() -> None:
    ratios = torch.tensor([6.0, 6.0, 0.1, 1.0])[:, None]
    settings = loss_settings(loss_type="cispo", epsilon_high=5.0)
    micro = make_micro(torch.log(ratios).expand(-1, W))
    take(micro, -micro.advantage * ratios.clamp(max=5.0), 24.0)
    part = weighed(micro, settings)
    assert divided(micro, settings) == (pytest.approx(24.0), "tokens")
    line = ledger_of([part], settings, 0, 1)[0]
    assert (line["clip_low_share"], line["clip_high_share"]) == (0.0, 0.5)
    # as TRL counts them: those that are capped although the advantage asks for more
    assert numbers_of([part], settings, [])["clip_frac_total"] == 0.25


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("dapo", 0.25, 0.5), ("sapo", None, None), ("vespo", None, None)]
)
def test_losses_without_a_clip_have_no_share_that_is_clipped(
    kind: str, low: float | None, high: float | None
) -> None:
    settings = loss_settings(loss_type=kind)
    micro = make_micro(torch.log(torch.tensor([6.0, 6.0, 0.1, 1.0]))[:, None])
    part = weighed(micro, settings)
    line = ledger_of([part], settings, 0, 1)[0]
    assert (line.get("clip_low_share"), line.get("clip_high_share")) == (low, high)
    assert numbers_of([part], settings, []).get("clip_frac_total") == (low and 0.25)


def test_tokens_that_the_engine_did_not_score_are_left_out_of_the_difference() -> None:
    engine = torch.full((R, W), -1.01)
    engine[0, 0] = engine[2, 3] = float("nan")
    settings = loss_settings()
    part = weighed(make_micro(sampling_per_token_logps=engine), settings)
    assert numbers_of([part], settings, [])["logprob_diff_mean"] == pytest.approx(0.01, abs=1e-6)
    nothing = torch.full((R, W), float("nan"))
    part = weighed(make_micro(sampling_per_token_logps=nothing), settings)
    assert "logprob_diff_mean" not in numbers_of([part], settings, [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_loss_scale_is_in_no_figure(dtype: Any) -> None:
    settings = loss_settings()
    micro = make_micro(scale=65536.0)
    assert micro.passed is not None
    micro.passed.logp = micro.passed.logp.to(dtype)
    micro.passed.take((-micro.advantage.expand(-1, W) * 65536.0 / 2**24).to(dtype))
    micro.loss = torch.tensor(0.5)
    micro.take_factor(torch.tensor(65536.0))
    micro.heard = Heard()
    micro.heard.add(torch.tensor([3.0, 4.0]) * 65536.0)
    part = weighed(micro, settings)
    line = ledger_of([part], settings, 0, 1)[0]
    assert line["denominator"] == pytest.approx(2.0**24)
    assert (line["loss"], line["grad_norm"]) == (0.5, pytest.approx(5.0))
    told = {t["name"]: t for t in trail_of([part])}["gradient of log-probs"]
    assert told["dtype"] == str(dtype).rpartition(".")[2]
    assert told["largest"] == pytest.approx(2.0**-24)
