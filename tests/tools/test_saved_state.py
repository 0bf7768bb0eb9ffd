"""States of optimizer and schedule as plain data."""

from __future__ import annotations

import math
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from firstbad.tools.inert_pickle import Refused
from firstbad.tools.saved_state import read_optimizer, read_scaler, read_scheduler
from synthetic.torch_files import save_torch

RUNS = Path(__file__).parents[1] / "runs"


def test_a_state_that_torch_wrote() -> None:
    saved = read_optimizer(RUNS / "hare" / "checkpoint-120" / "optimizer.pt")
    assert len(saved.parameters) == 38
    assert set(saved.step_counts) == {60}  # Adam began anew at step 60
    assert saved.parameters[0].tensors["exp_avg_sq"].shape == (37, 64)
    group = saved.parameters[37].group
    assert group is saved.groups[1]
    assert (group.learning_rate, group.betas, group.eps) == (1e-4, (0.9, 0.99), 1e-8)
    assert group.is_adam
    schedule = read_scheduler(RUNS / "hare" / "checkpoint-120" / "scheduler.pt")
    assert (schedule.last_epoch, schedule.step_count) == (120, 121)
    assert (schedule.base_rates, schedule.last_rates) == ((1e-4, 1e-4), (1e-4, 1e-4))


@pytest.mark.parametrize("kind", ["f4", "i8"])
def test_a_count_is_a_number_or_a_tensor(tmp_path: Path, kind: str) -> None:
    state = {0: {"step": np.array(120, kind)}, 1: {"step": 7}, "by.name": {"step": 9.0}}
    save_torch(tmp_path / "optimizer.pt", {"state": state})
    saved = read_optimizer(tmp_path / "optimizer.pt")
    assert saved.step_counts == (120, 7, 9)
    assert saved.parameters[2].index == "by.name"
    assert saved.groups == ()


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e300, 2**70])
def test_a_number_that_is_no_step(tmp_path: Path, number: float) -> None:
    state = {0: {"step": number}, 1: {"step": 7}}
    save_torch(tmp_path / "optimizer.pt", {"state": state})
    assert read_optimizer(tmp_path / "optimizer.pt").step_counts == (7,)


def test_other_optimizers_keep_their_own(tmp_path: Path) -> None:
    state = {0: {"momentum_buffer": np.ones(3, np.float32)}}
    group = {"lr": np.array(0.5, np.float32), "momentum": 0.9, "params": [0]}
    value = {"state": OrderedDict(state), "param_groups": [group]}
    save_torch(tmp_path / "optimizer.pt", value)
    saved = read_optimizer(tmp_path / "optimizer.pt")
    assert saved.step_counts == ()
    assert saved.parameters[0].tensors["momentum_buffer"].sample().tolist() == [1, 1, 1]
    assert (saved.groups[0].learning_rate, saved.groups[0].is_adam) == (0.5, False)


def test_what_holds_no_state(tmp_path: Path) -> None:
    save_torch(tmp_path / "optimizer.pt", [1, 2])
    with pytest.raises(Refused, match="no optimizer state"):
        read_optimizer(tmp_path / "optimizer.pt")
    with pytest.raises(Refused, match="no schedule"):
        read_scheduler(tmp_path / "optimizer.pt")
    with zipfile.ZipFile(tmp_path / "optimizer.pt", "w") as archive:
        archive.writestr("optimizer/data.pkl", b"\x80\x02}.")
    with pytest.raises(Refused, match="no optimizer state"):
        read_optimizer(tmp_path / "optimizer.pt")


def test_a_loss_scaler(tmp_path: Path) -> None:
    """Both as a number and as a tensor; 65536 halved five times."""
    for scale in (2048.0, np.array(2048.0, np.float32)):
        state = {"scale": scale, "backoff_factor": 0.5, "_growth_tracker": 7}
        save_torch(tmp_path / "scaler.pt", state)
        saved = read_scaler(tmp_path / "scaler.pt")
        assert (saved.scale, saved.unskipped, saved.skipped_least) == (2048, 7, 5)
    save_torch(tmp_path / "scaler.pt", {"scale": 131072.0})
    assert read_scaler(tmp_path / "scaler.pt").skipped_least == 0


@pytest.mark.parametrize("state", [{}, {"scale": "much"}, [1.0], {"scale": -1.0}])
def test_no_loss_scaler(tmp_path: Path, state: object) -> None:
    save_torch(tmp_path / "scaler.pt", state)
    with pytest.raises(Refused, match="no loss scale"):
        read_scaler(tmp_path / "scaler.pt")
