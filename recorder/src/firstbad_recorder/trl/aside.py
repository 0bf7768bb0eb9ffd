"""Running the trainer's own code beside its training, so that nothing of it stays."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from typing import Any

from firstbad_recorder.probes.untouched import same_random
from firstbad_recorder.trl.weights import sharded

ATTACHED = "_firstbad_attachment"
"""Where a trainer keeps what records it."""
_COPIED = ("_metrics", "_logs", "_pending_metrics", "_pending_extra_logs", "_entropy_window_stats")
_KEPT = ("_step", "_buffered_inputs", "_current_train_step_time", "entropy_coef")
_STATE = (*_COPIED, *_KEPT, "_last_world_entropy")
"""What TRL changes when it computes a loss, and reads again later."""
_JOINS = ("reduce", "gather", "gather_for_metrics", "pad_across_processes")
_CALLS = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list",
    "gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
)  # fmt: skip
"""Functions of torch.distributed that wait for other processes."""


@contextlib.contextmanager
def as_before(trainer: Any) -> Iterator[None]:
    """Put counters, logs, controllers, random numbers and mode of the trainer back afterwards."""
    kept = {name: getattr(trainer, name) for name in _STATE if hasattr(trainer, name)}
    kept |= {name: copy.deepcopy(kept[name]) for name in _COPIED if name in kept}
    seen = trainer.state.num_input_tokens_seen
    training = trainer.model.training
    set_here = not hasattr(trainer, "current_gradient_accumulation_steps")
    attached = trainer.__dict__.get(ATTACHED)
    if attached is not None:
        attached.paused, paused = True, attached.paused
    try:
        with same_random():
            trainer.model.train()
            if set_here:  # set by the training loop
                trainer.current_gradient_accumulation_steps = (
                    trainer.args.gradient_accumulation_steps
                )
            yield
    finally:
        if attached is not None:
            attached.paused = paused
        for name, value in kept.items():
            setattr(trainer, name, value)
        trainer.state.num_input_tokens_seen = seen
        trainer.model.train(training)
        if set_here:
            del trainer.current_gradient_accumulation_steps


def needs_all(trainer: Any) -> bool:
    """Whether a pass through the model waits for other processes, as where weights are sharded."""
    if int(trainer.accelerator.num_processes) == 1:
        return False
    kind = getattr(trainer.accelerator, "distributed_type", "")
    plain = str(getattr(kind, "value", kind)).startswith(("NO", "MULTI_"))
    return not plain or sharded(trainer.model)


@contextlib.contextmanager
def alone(trainer: Any) -> Iterator[None]:
    """No process waits for another one: the trainer's own joins give back what they are given.

    Any other call to the other processes raises, in this thread, instead of waiting for them.
    """
    if int(trainer.accelerator.num_processes) == 1:
        yield
        return
    import torch.distributed

    thread = threading.get_ident()
    with contextlib.ExitStack() as stack:
        for name in _JOINS:
            if hasattr(trainer.accelerator, name):
                stack.enter_context(replaced(trainer.accelerator, name, _same))
        for name in _CALLS:
            if (original := getattr(torch.distributed, name, None)) is not None:
                refused = _refused(name, original, thread)
                stack.enter_context(replaced(torch.distributed, name, refused))
        yield


def _same(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


def _refused(name: str, original: Any, thread: int) -> Any:
    def call(*args: Any, **more: Any) -> Any:
        if threading.get_ident() == thread:
            raise RuntimeError(f"`{name}` while one process computes alone")
        return original(*args, **more)

    return call


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """One attribute of an object or a module is another one meanwhile."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:  # it came from the class
            delattr(owner, name)
        else:
            setattr(owner, name, own)
