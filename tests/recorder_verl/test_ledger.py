"""Figures of micro-batches, by loss function and by settings that verl allows."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firstbad_recorder import Recorder
from firstbad_recorder.verl import attach, batch, driver, worker
from firstbad_recorder.verl.batch import Batch
from firstbad_recorder.verl.ledger import line_of, norm_of

torch = pytest.importorskip("torch")

RATIOS = {"ratio_p50", "ratio_p95", "ratio_p99", "ratio_max"}
SHARES = {"clip_low_share", "clip_high_share"}


def config_of(**settings: Any) -> SimpleNamespace:
    about: dict[str, Any] = {
        "loss_agg_mode": "token-mean", "clip_ratio": 0.2, "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.2, "policy_loss": {"loss_mode": "vanilla"},
    }  # fmt: skip
    return SimpleNamespace(**{**about, **settings})


def line(**settings: Any) -> dict[str, object]:
    """One row of a prompt token and two of a response, with ratios 1.3 and 0.9."""
    new = torch.tensor([math.log(1.3), math.log(0.9)])
    rows = Batch(
        ids=[torch.tensor([5, 6, 7])],
        attended=[torch.ones(3)],
        widths=[1],
        responses={"response_mask": [torch.ones(2)], "old_log_probs": [torch.zeros(2)]},
        facts={"log_probs": [torch.cat([new, torch.zeros(1)])]},
    )
    micro = {
        "loss": torch.tensor(0.5), "config": config_of(**settings), "dp_size": 2,
        "batch_num_tokens": 40.0, "global_batch_size": 8,
    }  # fmt: skip
    return line_of(micro, rows)


@pytest.mark.parametrize(
    ("settings", "high"),
    [
        ({}, 0.5),
        ({"clip_ratio_low": None, "clip_ratio_high": None}, 0.5),
        ({"clip_ratio_low": None, "clip_ratio_high": None, "clip_ratio": 0.4}, 0.0),
        ({"clip_ratio_high": 0.4}, 0.0),
        ({"policy_loss": None}, 0.5),
    ],
)
def test_a_side_of_the_band_that_is_not_set_is_clip_ratio(
    settings: dict[str, Any], high: float
) -> None:
    found = line(**settings)
    assert (found["clip_low_share"], found["clip_high_share"]) == (0.0, high)
    assert found["ratio_max"] == pytest.approx(1.3)
    assert found["kl_old"] == pytest.approx(-(math.log(1.3) + math.log(0.9)) / 2)


@pytest.mark.parametrize(
    ("mode", "there"),
    [
        ("vanilla", RATIOS | SHARES), ("clip_cov", RATIOS | SHARES), ("cispo", RATIOS | SHARES),
        ("sapo", RATIOS), ("dppo_tv", RATIOS), ("dppo_kl", RATIOS), ("my_own", RATIOS),
        ("gspo", set()), ("geo_mean", set()), ("bypass_mode", RATIOS | SHARES),
    ],
)  # fmt: skip
def test_what_a_loss_does_not_do_is_not_counted(mode: str, there: set[str]) -> None:
    found = line(policy_loss={"loss_mode": mode})
    assert found.keys() & (RATIOS | SHARES) == there
    assert found["n_tokens"] == 2
    assert "kl_old" in found


def test_a_bypass_that_does_not_clip() -> None:
    settings = {"loss_mode": "bypass_mode", "rollout_correction": {"loss_type": "reinforce"}}
    assert line(policy_loss=settings).keys() & (RATIOS | SHARES) == RATIOS


@pytest.mark.parametrize(
    ("loss", "mode", "divided"),
    [
        ("vanilla", "token-mean", 40.0),
        ("vanilla", "seq-mean-token-mean", 8.0),
        ("vanilla", "token-sum", 1.0),
        ("vanilla", "seq-mean-token-sum-norm", None),
        ("gspo", "token-mean", 40.0),
        ("sapo", "token-mean", 8.0),
        ("geo_mean", "token-mean", None),
    ],
)
def test_what_the_loss_is_divided_by(loss: str, mode: str, divided: float | None) -> None:
    found = line(policy_loss={"loss_mode": loss}, loss_agg_mode=mode)
    assert found.get("denominator") == divided
    assert found.get("scale") == (None if loss == "geo_mean" else 2.0)


def test_norms_on_both_sides_of_clipping() -> None:
    assert norm_of(3.0, 1) == {"before_clip": 3.0, "clip_value": 1.0, "after_clip": 1.0}
    assert norm_of(math.inf, 1.0) == {"before_clip": math.inf, "clip_value": 1.0}
    assert norm_of(3.0, None) == {"before_clip": 3.0}


def test_updates_without_a_delivery_are_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MOST_LINES", 3)
    monkeypatch.setattr(worker, "_rows", lambda micro: Batch([], [], [], {}))
    monkeypatch.setattr(worker, "line_of", lambda micro, rows: {})
    monkeypatch.setattr(worker, "_joined", lambda parts: None)
    monkeypatch.setattr(batch, "tokens_of", lambda whole: {})
    monkeypatch.setattr(worker, "_after", lambda *given: None)
    recorder = worker._here.recorder = Recorder(tmp_path)
    engine = SimpleNamespace(is_mp_src_rank_with_outputs=lambda: True)
    for _ in range(10):
        worker._finished(worker._Update([{}]), engine, {"metrics": {"grad_norm": 1.0}})
    assert [row["update"] for row in worker._here.ledger] == [7, 8, 9]
    assert len(worker._here.norms) == 3
    assert recorder.dropped == 14
    worker.flush("no number")
    assert recorder.dropped == 15
    worker.flush(4)
    assert worker._here.ledger == []


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def broken(*given: Any) -> Any:
    raise Broken


@pytest.mark.parametrize("result", [SimpleNamespace(meta_info=None), None, 7])
def test_what_an_update_gives_back_is_handed_on_whatever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Any
) -> None:
    held: list[Any] = []
    recorder = Recorder(tmp_path)
    found = SimpleNamespace(
        taken=lambda batch: 3, hold=lambda step, metrics: held.append((step, metrics))
    )
    owner: Any = SimpleNamespace(recorder=recorder)
    found.quietly = partial(driver.Driver.quietly, owner)
    monkeypatch.setattr(driver, "of", lambda trainer: found)
    assert attach._update(lambda trainer, batch: result)("trainer", batch="rows") is result
    assert held == [(3, None)]
    found.hold = broken
    assert attach._update(lambda trainer, batch: result)("trainer", "rows") is result
    assert recorder.dropped == 1
    assert driver.quietly(broken) is None


def test_originals_get_their_arguments_as_they_were_given() -> None:
    def said(owner: Any, *args: Any, **more: Any) -> Any:
        return owner, args, more

    module = SimpleNamespace(CheckpointEngineManager=type("Manager", (), {"update_weights": said}))
    attach._delivery(module)
    manager = module.CheckpointEngineManager()
    assert manager.update_weights() == (manager, (), {})
    assert manager.update_weights(global_steps=3) == (manager, (), {"global_steps": 3})
    assert attach._lost(said)("config", data=1) == ("config", (), {"data": 1})
