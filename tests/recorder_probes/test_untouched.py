"""Random numbers after a probe are as if it had not been, whatever draws them."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from firstbad_recorder.probes.untouched import same_random, untouched


def test_every_generator_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[object] = []
    several = SimpleNamespace(
        is_initialized=lambda: True,
        get_rng_state_all=lambda: ["a", "b"],
        set_rng_state_all=put.append,
    )
    one = SimpleNamespace(
        is_available=lambda: True, get_rng_state=lambda: "c", set_rng_state=put.append
    )
    unused = SimpleNamespace(is_initialized=lambda: False)
    for name, module in (("npu", several), ("mps", one), ("xpu", unused)):
        monkeypatch.setattr(torch, name, module, raising=False)
    model = torch.nn.Linear(1, 1)
    for around in (same_random, lambda: untouched(model)):
        put.clear()
        drawn = []
        for inside in (False, True):
            random.seed(1)
            np.random.seed(1)
            torch.default_generator.manual_seed(1)
            if inside:
                with around():
                    drawn.append((random.random(), np.random.rand(), float(torch.rand(1))))
            drawn.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
        assert len(set(drawn)) == 1, drawn
        assert put == [["a", "b"], "c"]
