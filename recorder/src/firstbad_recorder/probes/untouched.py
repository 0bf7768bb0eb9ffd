"""Leaves a model and its optimizer as they were before a probe."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_DEVICES = ("cuda", "xpu", "npu", "mps", "mlu", "musa")
"""Modules of torch that may have generators of their own."""


@contextmanager
def untouched(model: Any, optimizer: Any = None) -> Generator[None, None, None]:
    """Put parameters, buffers, gradients, optimizer state and random states back at the end.

    Takes memory for one more copy of parameters, buffers and optimizer state. On the way in the
    gradients are taken off.
    """
    import torch

    kept = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
    gradients = [(p, p.grad) for p in model.parameters()]
    state = None if optimizer is None else _copy(optimizer.state)
    settings = [] if optimizer is None else [dict(group) for group in optimizer.param_groups]
    seeds = rng_states()
    training = [(module, module.training) for module in model.modules()]
    zero_grad(model)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, mode in training:
            module.training = mode
        if state is not None:
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, setting in zip(optimizer.param_groups, settings):
                group.clear()
                group.update(setting)
        set_rng_states(seeds)


@contextmanager
def no_dropout(model: Any) -> Generator[None, None, None]:
    """Dropout layers drop nothing, while the rest of the model stays in the mode it is in."""
    import torch

    kept = [(m, m.p) for m in model.modules() if isinstance(m, torch.nn.modules.dropout._DropoutNd)]
    try:
        for module, _ in kept:
            module.p = 0.0
        yield
    finally:
        for module, p in kept:
            module.p = p


def zero_grad(model: Any) -> None:
    """Take the gradients off, without writing into them."""
    for parameter in model.parameters():
        parameter.grad = None


def rng_states() -> Any:
    """State of every generator in use: torch's on each device, Python's own, numpy's if loaded."""
    import torch

    found = [(torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate())]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found.append((numpy.random.set_state, numpy.random.get_state()))
    for device in _DEVICES:
        module = getattr(torch, device, None)
        if module is None or not _in_use(module):
            continue
        kind = "_rng_state_all" if hasattr(module, "get_rng_state_all") else "_rng_state"
        found.append((getattr(module, "set" + kind), getattr(module, "get" + kind)()))
    return found


def set_rng_states(states: Any) -> None:
    """What `rng_states` gave."""
    for put, state in states:
        put(state)


@contextmanager
def same_random() -> Generator[None, None, None]:
    """Random numbers afterwards are as if nothing had been drawn meanwhile."""
    states = rng_states()
    try:
        yield
    finally:
        set_rng_states(states)


def _in_use(module: Any) -> bool:
    asked = getattr(module, "is_initialized", None) or getattr(module, "is_available", None)
    return asked is not None and bool(asked())


def _copy(state: Any) -> Any:
    """A copy in which tensors are cloned and parameters, which are keys, are not."""
    import torch

    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copy(value) for key, value in state.items()}
    return [_copy(value) for value in state] if isinstance(state, list) else state
