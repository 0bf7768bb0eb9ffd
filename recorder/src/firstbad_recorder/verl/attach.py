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
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from firstbad_recorder.verl import driver, where, worker
from firstbad_recorder.verl.hook import watch
from firstbad_recorder.wrap import wrap

_Function = Callable[..., Any]
_wrap = partial(wrap, once=True)


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
        def environment(*args: Any, **more: Any) -> Any:
            found = original(*args, **more)
            config = _given(args, more, 0, "config")
            driver.quietly(lambda: where.to_workers(found.setdefault("env_vars", {}), config))
            return found

        return environment

    _wrap(module, "get_ppo_ray_runtime_env", made)


def _trainer_v0(module: Any) -> None:
    trainer = module.RayPPOTrainer
    _wrap(trainer, "fit", _whole)
    _wrap(trainer, "_compute_old_log_prob", _old)
    _wrap(trainer, "_update_actor", _update)


def _trainer_v1(module: Any) -> None:
    trainer = module.PPOTrainer
    _wrap(trainer, "init", _begins)
    _wrap(trainer, "fit", _whole)
    _wrap(trainer, "_update_actor", _update_v1)


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
    def compute(trainer: Any, *args: Any, **more: Any) -> Any:
        result = original(trainer, *args, **more)
        found = driver.of(trainer)
        if found is not None:
            found.quietly(found.scored, result)
        return result

    return compute


def _update(original: _Function) -> _Function:
    def update(trainer: Any, *args: Any, **more: Any) -> Any:
        found, batch = driver.of(trainer), _given(args, more, 0, "batch")
        step = None if found is None else found.quietly(found.taken, batch)
        try:
            result = original(trainer, *args, **more)
        except BaseException:
            if found is not None and step is not None:
                found.quietly(found.hold, step, None)
            raise
        if found is not None and step is not None:
            found.quietly(lambda: found.hold(step, _metrics(result)))
        return result

    return update


def _update_v1(original: _Function) -> _Function:
    def update(trainer: Any, *args: Any, **more: Any) -> Any:
        found, batch = driver.of(trainer), _given(args, more, 0, "batch")
        step = None if found is None else found.quietly(found.fetched, batch)
        try:
            result = original(trainer, *args, **more)
        except BaseException:
            if found is not None and step is not None:
                found.quietly(found.hold, step, None)
            raise
        if found is not None and step is not None:
            found.quietly(found.hold, step, _given(args, more, 1, "metrics"))
        return result

    return update


def _tracking(module: Any) -> None:
    def made(original: _Function) -> _Function:
        def log(tracking: Any, *args: Any, **more: Any) -> Any:
            if (found := driver.current()) is not None:
                data, step = _given(args, more, 0, "data"), _given(args, more, 1, "step")
                found.quietly(found.logged, data, step)
            return original(tracking, *args, **more)

        return log

    _wrap(module.Tracking, "log", made)


def _delivery(module: Any) -> None:
    def made(original: _Function) -> _Function:
        def update_weights(manager: Any, *args: Any, **more: Any) -> Any:
            result = original(manager, *args, **more)
            step = _given(args, more, 0, "global_steps")
            if inspect.isawaitable(result):
                return _after(result, lambda: driver.delivered(step))
            driver.delivered(step)
            return result

        return update_weights

    _wrap(module.CheckpointEngineManager, "update_weights", made)


async def _after(awaited: Any, then: Callable[[], None]) -> Any:
    result = await awaited
    then()
    return result


def _losses(module: Any) -> None:
    _wrap(module, "ppo_loss", _lost)


def _lost(original: _Function) -> _Function:
    def ppo_loss(*args: Any, **more: Any) -> Any:
        result = original(*args, **more)
        config, data = _given(args, more, 0, "config"), _given(args, more, 2, "data")
        worker.lost(config, _given(args, more, 1, "model_output"), data, result)
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

    _wrap(module.BaseEngine, "train_batch", made)


def _workers(module: Any) -> None:
    def made(original: _Function) -> _Function:
        async def update_weights(actor: Any, *args: Any, **more: Any) -> Any:
            worker.flush(_given(args, more, 0, "global_steps"))
            return await original(actor, *args, **more)

        return update_weights

    _wrap(module.ActorRolloutRefWorker, "update_weights", made)
    _wrap(module, "ppo_loss", _lost)  # where it was imported before this package was


def _given(args: tuple[Any, ...], more: Mapping[str, Any], place: int, name: str) -> Any:
    """An argument as it was given, None where it was not; originals get theirs untouched."""
    return more.get(name, args[place] if place < len(args) else None)


def _metrics(result: Any) -> Any:
    """What V0's update says of itself."""
    return (getattr(result, "meta_info", None) or {}).get("metrics")
