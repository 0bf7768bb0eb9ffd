"""Which functions of verl are wrapped, and what each of them tells.

| module | what is wrapped | tells |
|---|---|---|
| `trainer.constants_ppo` | `get_ppo_ray_runtime_env` | nothing: it carries variables to workers |
| `trainer.ppo.ray_trainer` | `RayPPOTrainer`, three methods | whole batches of V0 |
| `trainer.ppo.v1.trainer_base` | `PPOTrainer`, three methods | whole batches of V1 |
| `utils.tracking` | `Tracking.log` | numbers of every step |
| `checkpoint_engine.base` | `CheckpointEngineManager.update_weights` | weight deliveries |
| `workers.utils.losses` | `ppo_loss` | in workers: micro-batches |
| `workers.engine.base` | `BaseEngine.train_batch` | in workers: updates |
| `workers.engine_workers` | `ActorRolloutRefWorker.update_weights` | in workers: number of a step |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from firstbad_recorder.verl import driver, where, worker
from firstbad_recorder.verl.hook import watch, wrap

_Function = Callable[..., Any]


def install() -> None:
    """Wait for verl's modules."""
    watch({
        "verl.trainer.constants_ppo": _environment,
        "verl.trainer.ppo.ray_trainer": _trainer_v0,
        "verl.trainer.ppo.v1.trainer_base": _trainer_v1,
        "verl.utils.tracking": _tracking,
        "verl.checkpoint_engine.base": _delivery,
        "verl.workers.utils.losses": _losses,
        "verl.workers.engine.base": _engine,
        "verl.workers.engine_workers": _workers,
    })  # fmt: skip


def _environment(module: Any) -> None:
    def made(original: _Function) -> _Function:
        def environment(config: Any = None, *args: Any, **more: Any) -> Any:
            found = original(config, *args, **more)
            driver.quietly(lambda: where.to_workers(found.setdefault("env_vars", {}), config))
            return found

        return environment

    wrap(module, "get_ppo_ray_runtime_env", made)


def _trainer_v0(module: Any) -> None:
    trainer = module.RayPPOTrainer
    wrap(trainer, "fit", _whole)
    wrap(trainer, "_compute_old_log_prob", _old)
    wrap(trainer, "_update_actor", _update)


def _trainer_v1(module: Any) -> None:
    trainer = module.PPOTrainer
    wrap(trainer, "init", _begins)
    wrap(trainer, "fit", _whole)
    wrap(trainer, "_update_actor", _update_v1)


def _begins(original: _Function) -> _Function:
    def init(trainer: Any, *args: Any, **more: Any) -> Any:
        driver.of(trainer)
        return original(trainer, *args, **more)

    return init


def _whole(original: _Function) -> _Function:
    def fit(trainer: Any, *args: Any, **more: Any) -> Any:
        found = driver.of(trainer)
        try:
            result = original(trainer, *args, **more)
        except BaseException as error:
            if found is not None:
                found.recorder.failed(error, _making(trainer))
            raise
        if found is not None:
            found.recorder.close()
        return result

    return fit


def _making(trainer: Any) -> int | None:
    """The step that a trainer counts as the one being made; None before the first."""
    step = getattr(trainer, "global_steps", None)
    return step if isinstance(step, int) and step > 0 else None


def _old(original: _Function) -> _Function:
    def compute(trainer: Any, batch: Any, *args: Any, **more: Any) -> Any:
        result = original(trainer, batch, *args, **more)
        found = driver.of(trainer)
        if found is not None:
            found.quietly(found.scored, result)
        return result

    return compute


def _update(original: _Function) -> _Function:
    def update(trainer: Any, batch: Any, *args: Any, **more: Any) -> Any:
        found = driver.of(trainer)
        step = None if found is None else found.quietly(found.taken, batch)
        try:
            result = original(trainer, batch, *args, **more)
        except BaseException:
            if found is not None and step is not None:
                found.quietly(found.hold, step, None)
            raise
        if found is not None and step is not None:
            found.quietly(found.hold, step, getattr(result, "meta_info", {}).get("metrics"))
        return result

    return update


def _update_v1(original: _Function) -> _Function:
    def update(trainer: Any, batch: Any, metrics: Any, *args: Any, **more: Any) -> Any:
        found = driver.of(trainer)
        step = None if found is None else found.quietly(found.fetched, batch)
        try:
            result = original(trainer, batch, metrics, *args, **more)
        except BaseException:
            if found is not None and step is not None:
                found.quietly(found.hold, step, None)
            raise
        if found is not None and step is not None:
            found.quietly(found.hold, step, metrics)
        return result

    return update


def _tracking(module: Any) -> None:
    def made(original: _Function) -> _Function:
        def log(tracking: Any, data: Any, step: Any, *args: Any, **more: Any) -> Any:
            if (found := driver.current()) is not None:
                found.quietly(found.logged, data, step)
            return original(tracking, data, step, *args, **more)

        return log

    wrap(module.Tracking, "log", made)


def _delivery(module: Any) -> None:
    def made(original: _Function) -> _Function:
        def update_weights(manager: Any, global_steps: Any = None, *args: Any, **more: Any) -> Any:
            result = original(manager, global_steps, *args, **more)
            if inspect.isawaitable(result):
                return _after(result, lambda: driver.delivered(global_steps))
            driver.delivered(global_steps)
            return result

        return update_weights

    wrap(module.CheckpointEngineManager, "update_weights", made)


async def _after(awaited: Any, then: Callable[[], None]) -> Any:
    result = await awaited
    then()
    return result


def _losses(module: Any) -> None:
    wrap(module, "ppo_loss", _lost)


def _lost(original: _Function) -> _Function:
    # the names are those that engines call it with
    def ppo_loss(config: Any, model_output: Any, data: Any, *args: Any, **more: Any) -> Any:
        result = original(config, model_output, data, *args, **more)
        worker.lost(config, model_output, data, result)
        return result

    return ppo_loss


def _engine(module: Any) -> None:
    def made(original: _Function) -> _Function:
        def train_batch(engine: Any, *args: Any, **more: Any) -> Any:
            worker.begin(engine)
            try:
                result = original(engine, *args, **more)
            except BaseException:
                worker.end(engine, None)
                raise
            worker.end(engine, result)
            return result

        return train_batch

    wrap(module.BaseEngine, "train_batch", made)


def _workers(module: Any) -> None:
    def made(original: _Function) -> _Function:
        async def update_weights(
            actor: Any, global_steps: Any = None, *args: Any, **more: Any
        ) -> Any:
            worker.flush(global_steps)
            return await original(actor, global_steps, *args, **more)

        return update_weights

    wrap(module.ActorRolloutRefWorker, "update_weights", made)
    wrap(module, "ppo_loss", _lost)  # where it was imported before this package was
