"""Several processes decide together what the probe `accumulation` runs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from firstbad_recorder.probes.accumulation import accumulation


@pytest.mark.parametrize("factor", [1.0, 2.0, float("nan")])
@pytest.mark.parametrize("other", [False, True])
def test_all_ranks_make_the_same_calls(factor: float, other: bool) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    calls: list[int] = []
    asked: list[bool] = []

    def backward(batches: Any) -> None:
        calls.append(len(batches))
        for batch in batches:
            (model(batch).sum() * (factor if len(batches) > 1 else 1.0)).backward()

    def any_rank(own: bool) -> bool:
        asked.append(own)
        return own or other

    rows = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    parts = [rows[:1], rows[1:]]
    try:
        found = accumulation(model, backward, rows, parts, any_rank=any_rank)
    except ValueError:
        assert factor != factor  # raised only when the others have been answered
    else:
        assert ("even" in found) is (factor == 2.0)
    assert asked == [factor == 2.0]
    assert calls == [1, 1, 2] + [1, 1] * (other or factor == 2.0)
