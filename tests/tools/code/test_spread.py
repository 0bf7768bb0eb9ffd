"""Standard deviations of rewards: the axis of their groups, and what keeps a flat group apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LookAt = Callable[..., list[Any]]
AXIS = {
    "method": "g = rewards.view(-1, G)\na = (g - g.mean(dim=1, keepdim=True)) / (g.std() + 1e-4)",
    "function": (
        "import torch as t\ng = rewards.reshape(-1, num_generations)\n"
        "a = (g - t.mean(g, dim=1, keepdim=True)) / (t.std(g) + 1e-6)"
    ),
    "numpy": "g = np.reshape(rewards, (-1, 8))\na = (g - g.mean(1)) / (np.std(g) + 1e-6)",
    "columns": "g = scores.view(-1, group_size)\na = (g - g.mean(0)) / (g.std(0) + eps)",
    "parameter": "def f(r):\n    return (r - r.mean(dim=1, keepdim=True)) / (r.std(dim=0) + 1e-4)",
    "variables": (
        "g = rewards.view(-1, G)\nm = g.mean(dim=1)\ns = g.std(unbiased=False)\nx = g - m\n"
        "a = x / (s + eps)"
    ),
}
BARE = {
    "method": "a = (rewards - rewards.mean()) / rewards.std()",
    "function": "import torch as t\na = (scores - t.mean(scores)) / t.std(scores)",
    "variable": "g = rewards.view(-1, G)\ns = g.std(dim=1, keepdim=True)\na = (g - g.mean(1)) / s",
    "in place": "adv = reward - reward.mean(-1)\nadv /= reward.std(-1)",
    "numpy": "import numpy as np\na = (rewards - np.mean(rewards)) / np.std(rewards)",
}
SPARES = {
    "groups": "g = rewards.view(-1, G)\na = (g - g.mean(1, keepdim=True)) / (g.std(1) + 1e-4)",
    "last axis": "g = rewards.view(-1, G)\na = (g - g.mean(-1)) / (g.std(dim=-1) + 1e-4)",
    "batch": "s = rewards.std()\na = (rewards - rewards.view(-1, G).mean(1)) / (s + 1e-4)",
    "whitened": "a = (adv - adv.mean()) / (adv.std() + 1e-8)",
    "logged": "g = rewards.view(-1, G)\nmetrics['std'] = g.std().item()",
    "floor": "a = (rewards - rewards.mean()) / rewards.std().clamp(min=1e-6)",
    "checked": "s = rewards.std()\nif s > 0:\n    a = (rewards - rewards.mean()) / s",
    "chosen": "s = rewards.std()\na = torch.where(s > 0, (rewards - m) / s, 0)",
    "repaired": "a = torch.nan_to_num((rewards - m) / rewards.std())",
    "no rewards": "x = (images - images.mean()) / images.std()",
    "form of features": "x = features.view(-1, width)\ny = (x - x.mean(0)) / (x.std(0) + eps)",
}


@pytest.mark.parametrize("way", AXIS)
def test_over_the_wrong_axis(look_at: LookAt, way: str) -> None:
    (found,) = look_at(AXIS[way])
    assert (found.pattern, found.cause) == ("std_axis", "reward.wrong_group")
    assert "spread of the first 0.500" in found.shown
    assert "a factor of 1.155 at 4 samples" in found.shown


@pytest.mark.parametrize("way", BARE)
def test_nothing_is_added(look_at: LookAt, way: str) -> None:
    (found,) = look_at(BARE[way])
    assert (found.pattern, found.cause) == ("bare_std", "reward.near_zero_sigma")
    assert "0 / 0 = nan" in found.shown
    assert "advantage is 1.50" in found.shown


@pytest.mark.parametrize("way", SPARES)
def test_spread_of_the_group_and_what_guards_it(look_at: LookAt, way: str) -> None:
    assert look_at(SPARES[way]) == []
