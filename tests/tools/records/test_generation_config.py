"""What a generation config would supply to the sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Run

TOOL = "check_generation_config"
MakeRun = Callable[..., Run]


@pytest.mark.parametrize(
    ("config", "figures"),
    [
        ({"generation.repetition_penalty": 1.1}, (1, 1, 0)),
        ({"generation.repetition_penalty": 1.1, "repetition_penalty": 1.0}, (1, 1, 0)),
        ({"generation.repetition_penalty": 1.1, "repetition_penalty": 1.1}, (1, 0, 0)),
        ({"generation.top_k": 20, "top_k": 50}, (1, 0, 1)),
        ({"generation.top_k": 20, "generation.top_p": 0.8, "top_k": 0}, (2, 2, 0)),
        ({"generation.temperature": 0.6, "temperature": 1.0}, (1, 1, 0)),
        ({"generation.top_p": 1.0, "generation.eos_token_id": 3}, (0, 0, 0)),
    ],
)
def test_what_is_supplied(
    make_run: MakeRun,
    measure: Callable[..., dict[str, Any]],
    config: dict[str, object],
    figures: tuple[int, int, int],
) -> None:
    found = measure(TOOL, make_run(config=config))
    assert (found["n_stated"], found["n_supplied"], found["n_differ"]) == figures


def test_it_is_told_by_name(make_run: MakeRun, evidence: Callable[..., Evidence]) -> None:
    config = {"generation.top_k": 20, "generation.top_p": 0.8, "top_p": 0.9}
    found = evidence(TOOL, make_run(config=config))
    assert found.quote == "The model's generation config states `top_k` 20."


def test_without_such_a_file(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "generation_config.json" in missing(TOOL, make_run(config={"top_k": 20}))
