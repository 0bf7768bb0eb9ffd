"""What a flight recorder adds to a run in memory: sources, attention, finish reasons, trails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from firstbad.tools.flight import Clamp, Flight, FlightStep, ParameterGroup, Trail
from firstbad.tools.run import COMPLETION, PADDING, PROMPT, Capture, Captures, Rollouts, Run

PLACES = ("logits", "log_softmax", "logp", "log_ratio", "exp", "kl", "loss", "grad")


def trail(**changed: int) -> tuple[Trail, ...]:
    """A sound trail; `place=n` makes n values of that tensor not finite."""
    return tuple(
        Trail(place, place, "float32", 1000, changed.get(place, 0), 0, 3.0) for place in PLACES
    )


def sound_step(step: int) -> FlightStep:
    """One captured step in which nothing is wrong."""
    return FlightStep(
        step,
        batch=f"b{step}",
        trail=trail(),
        clamps=(Clamp("fuse", "log_ratio", -20.0, 20.0, 1000, 0),),
        parameters=(ParameterGroup("mlp", 0.1, 1e-3, 10.0, 1.0, "bfloat16", "float32"),),
    )


def recorded(run: Run) -> Run:
    """The run as a recorder would have kept it, with the rows of a capture beside its rollouts."""
    batches = {b.step: b for b in run.rollouts.batches()}
    dumps: dict[int, Capture] = {}
    for capture in run.captures:
        batch = batches[capture.step]
        rows = len(batch)
        own = {name: array[:rows] for name, array in capture.arrays.items()}
        made, shown = own["completion_mask"] != 0, own["prompt_mask"] != 0
        own |= {
            "source": np.where(made, COMPLETION, PADDING),
            "attention_mask": made.astype(np.int64),
            "prompt_source": np.where(shown, PROMPT, PADDING),
            "prompt_attention_mask": shown.astype(np.int64),
            "advantage": np.asarray(batch.advantage),
        }
        dumps[capture.step] = replace(capture, arrays=own)
        ended = (own["token_id"] == 1).any(axis=1)
        batches[capture.step] = replace(batch, finish=["stop" if e else "length" for e in ended])
    steps = {step: sound_step(step) for step in dumps}
    run.rollouts = Rollouts(list(batches), lambda steps: map(batches.__getitem__, steps))
    run.captures = Captures(list(dumps), dumps.__getitem__)
    run.flight = Flight(list(steps), steps.__getitem__)
    return run
