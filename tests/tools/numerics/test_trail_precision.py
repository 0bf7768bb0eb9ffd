"""Dtypes of the trail: logits may have 16 bits, what is made of them may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from firstbad.tools.flight import Flight
from firstbad.tools.run import Run
from synthetic.recorded import sound_step

TOOL = "check_trail_precision"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def with_dtype(make_run: MakeRun, place: str, dtype: str, since: int) -> Run:
    steps = {
        step: replace(
            sound_step(step),
            trail=tuple(
                replace(t, dtype=dtype) if t.place == place and step >= since else t
                for t in sound_step(step).trail
            ),
        )
        for step in range(1, 7)
    }
    return make_run(flight=Flight(list(steps), steps.__getitem__))


@pytest.mark.parametrize(
    ("place", "dtype", "half"),
    [
        ("logits", "bfloat16", 0),
        ("loss", "torch.bfloat16", 0),
        ("log_softmax", "bfloat16", 3),
        ("logp", "torch.float16", 3),
        ("log_ratio", "bfloat16", 3),
        ("kl", "float64", 0),
    ],
)
def test_places_with_16_bits(
    make_run: MakeRun, measure: Measure, place: str, dtype: str, half: int
) -> None:
    found = measure(TOOL, with_dtype(make_run, place, dtype, since=4))
    assert found["n_tensors"] == 6 * 5, "log-softmax to KL"
    assert found["n_half"] == half
    assert found["first_bad_step"] == (4 if half else None)
    assert found["last_good_step"] == (3 if half else None)


def test_without_dtypes(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "no recorded dtypes" in missing(TOOL, make_run())


def test_captured_log_probs_say_what_they_were_computed_in(
    make_run: MakeRun, measure: Measure
) -> None:
    """Stored with 32 bits, and computed with 16; the engine's may be what they like."""
    for name, half in (("logp_new", 1), ("logp_ref", 1), ("logp_engine", 0), ("entropy", 0)):
        step = replace(sound_step(1), trail=(), compute_dtypes={name: "torch.bfloat16"})
        run = make_run(flight=Flight([1], {1: step}.__getitem__))
        if half:
            assert measure(TOOL, run)["n_half"] == 1
            assert measure(TOOL, run)["from_start"]
        else:
            sound = replace(step, compute_dtypes={name: "bfloat16", "logp_new": "float32"})
            run = make_run(flight=Flight([1], {1: sound}.__getitem__))
            assert measure(TOOL, run)["n_half"] == 0
