"""Hooks of a training: what they hear, what they never do, and that they end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import torch

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer
from firstbad_recorder.trl import attach
from firstbad_recorder.trl.gradients import Gradients, Heard, loss_scale
from firstbad_recorder.trl.weights import Moves, compared
from recorder_trl.lines import rows_in

pytestmark = pytest.mark.filterwarnings("default")
MakeTrainer = Callable[..., Any]


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """One process, as if it were several."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'join'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_the_norm_of_what_was_heard() -> None:
    heard = Heard()
    assert heard.norm() is None
    heard.add(torch.tensor([3.0, 0.0]))
    heard.add(torch.tensor([[4.0]]).half())
    assert heard.norm() == pytest.approx(5.0)
    with pytest.raises(TypeError):
        heard.add(SimpleNamespace(detach=lambda: SimpleNamespace(dtype=None)))
    assert heard.norm() is None  # a part of it is missing


def test_nothing_that_breaks_in_a_hook_reaches_the_backward_pass() -> None:
    errors: list[Exception] = []

    def quietly(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            errors.append(error)

    model = torch.nn.Linear(2, 1)
    gradients = Gradients(quietly)
    heard = gradients.listen(model)
    assert heard is not None
    heard.norms = None  # type: ignore[assignment]
    model(torch.ones(1, 2)).sum().backward()
    assert len(errors) == 2
    assert torch.equal(model.weight.grad, torch.ones(1, 2))
    gradients.close()
    model(torch.ones(1, 2)).sum().backward()
    assert len(errors) == 2


def test_parameters_that_are_spread_over_processes(mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
    named = dict(model.named_parameters())
    weight = named["weight"].full_tensor().detach().clone()
    model(torch.ones(1, 4)).sum().backward()
    assert Gradients(print).listen(model) is None
    moves = Moves(named)
    torch.optim.SGD(model.parameters(), 0.5).step()
    figures = {f["name"]: f for f in moves.figures()}
    assert figures["weight"]["weight_norm"] == pytest.approx(float(weight.norm()), rel=1e-5)
    assert figures["weight"]["grad_norm"] == pytest.approx(4.0)
    assert figures["weight"]["update_norm"] == pytest.approx(2.0)
    # the engine's whole tensor is compared where the own part is all of it, and else left out
    whole = {n: p.full_tensor() for n, p in named.items()}
    assert all(row["trainer"] == row["engine"] for row in compared(named, whole))
    assert compared(named, {n: torch.cat([t, t]) for n, t in whole.items()}) == []


def test_moves_divide_by_a_scale_that_the_optimizer_divides_by_later() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.full((4,), 512.0)
    assert Moves({"w": weight}, 256.0).figures()[0]["grad_norm"] == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("accelerator", "deepspeed", "scale"),
    [
        ({}, None, 1.0),
        ({"scaler": None}, None, 1.0),
        ({"scaler": torch.amp.GradScaler("cpu", init_scale=512.0)}, None, 512.0),
        ({}, SimpleNamespace(optimizer=SimpleNamespace(loss_scale=64)), 64.0),
        ({}, SimpleNamespace(optimizer=SimpleNamespace()), 1.0),
    ],
)
def test_where_a_loss_scale_is_found(accelerator: Any, deepspeed: Any, scale: float) -> None:
    trainer = SimpleNamespace(accelerator=SimpleNamespace(**accelerator), deepspeed=deepspeed)
    assert loss_scale(trainer) == scale


def test_a_training_with_a_loss_scaler_has_the_ledger_of_one_without(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    ledgers, norms = [], []
    for scale in (None, 1024.0):
        trainer = make_trainer(max_steps=2, report_to=[])
        if scale is not None:
            _scale(trainer, scale)
        folder = tmp_path / f"record-{scale}"
        recorder = attach(trainer, folder, baseline_every=1)
        torch.manual_seed(3)
        trainer.train()
        assert recorder.dropped == 0
        step = folder / "steps" / "00000002"
        ledgers.append(rows_in(step / "microbatches.jsonl"))
        parameters = rows_in(step / "numerics.json")[0]["parameters"]
        norms.append([p["grad_norm"] for p in parameters])
    for name in ("denominator", "loss", "grad_norm"):
        own, scaled = ([line[name] for line in ledger] for ledger in ledgers)
        assert scaled == pytest.approx(own, rel=1e-3), name
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)


def _scale(trainer: Any, scale: float) -> None:
    accelerator = trainer.accelerator
    scaler = accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    accelerator.unscale_gradients = lambda: scaler.unscale_(trainer.optimizer.optimizer)


class Interrupted(LoggedGRPOTrainer):
    """Stopped in the middle of its first step."""

    def training_step(self, *args: Any, **more: Any) -> Any:
        if self._step == 1:
            raise KeyboardInterrupt
        return super().training_step(*args, **more)


@pytest.mark.parametrize("kind", [LoggedGRPOTrainer, Interrupted])
def test_no_hook_outlives_the_training(
    make_trainer: MakeTrainer, tmp_path: Path, kind: type[Any]
) -> None:
    trainer = make_trainer(kind, max_steps=2)
    attach(trainer, tmp_path / "record", baseline_every=1)
    try:
        trainer.train()
    except KeyboardInterrupt:
        assert kind is Interrupted
    optimizer = trainer.optimizer.optimizer
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(p._backward_hooks for p in trainer.model.parameters())
