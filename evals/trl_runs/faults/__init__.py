"""Trainers with one fault each, by the name that a run in `catalog` gives.

Each is a real change in a real code path: it overrides a method of TRL's trainer, and the training
acts on what that method then does. A change acts while `acting` is true.
"""

from __future__ import annotations

import inspect

from firstbad.evals.trl_runs.faults import (
    engine,
    logprobs,
    loss,
    masks,
    metrics,
    resume,
    rows,
    sampling,
)
from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer

TRAINERS = {
    name: found
    for module in (engine, logprobs, loss, masks, metrics, resume, rows, sampling)
    for name, found in inspect.getmembers(module, inspect.isclass)
    if issubclass(found, LoggedGRPOTrainer)
}


def trainer_named(name: str | None) -> type[LoggedGRPOTrainer]:
    """The trainer of that name; without a name the one without a fault."""
    return TRAINERS[name] if name else LoggedGRPOTrainer
