"""Log of a softmax: found with and without a constant; exact forms and mixtures are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LookAt = Callable[..., list[Any]]
ADDED = {
    "function": "import torch\nlp = torch.log(torch.softmax(x, -1) + 1e-8)",
    "method": "lp = (x.softmax(dim=-1) + 1e-8).log()",
    "alias": (
        "import torch.nn.functional as fn\nimport torch as t\nlp = t.log(fn.softmax(x, -1) + 1e-8)"
    ),
    "imported": "from torch.nn.functional import softmax\nlp = (1e-8 + softmax(x, -1)).log()",
    "module": "from torch import nn\nlp = torch.log(nn.Softmax(dim=-1)(x) + 1e-8)",
    "variable": "p = F.softmax(x, -1)\np = p.gather(-1, i).squeeze(-1)\nlp = torch.log(p + 1e-8)",
    "constant": (
        "EPS = 1e-8\ndef f(x):\n    p = F.softmax(x.float(), -1)\n    return (p + EPS).log()"
    ),
    "floor": "lp = torch.log(torch.softmax(x, -1).clamp(min=1e-8))",
    "jax": "import jax\nimport jax.numpy as jnp\nlp = jnp.log(jax.nn.softmax(x) + 1e-8)",
}
PLAIN = {
    "function": "lp = torch.log(F.softmax(x, dim=-1))",
    "method": "lp = x.softmax(-1).log()",
    "variable": "p = torch.softmax(x, -1)\nh = -(p * torch.log(p)).sum(-1)",
    "sigmoid": "loss = -torch.log(torch.sigmoid(chosen - rejected)).mean()",
}
SPARES = {
    "log_softmax": "lp = F.log_softmax(x, dim=-1)",
    "method": "lp = x.log_softmax(-1)",
    "cross_entropy": "nll = F.cross_entropy(x, y, reduction='none')",
    "mean of many": "lp = torch.log(F.softmax(x, -1).mean(0))",
    "mixture": "m = torch.log((F.softmax(x, -1) + F.softmax(y, -1)) / 2)",
    "softmax alone": "w = F.softmax(scores, -1)",
    "log of counts": "w = torch.log(counts + 1e-8)",
    "log of another": "p = F.softmax(x, -1)\np = torch.ones(3)\nlp = torch.log(p)",
    "one added": "z = torch.log(F.softmax(x, -1) + 1)",
    "logsigmoid": "loss = -F.logsigmoid(chosen - rejected).mean()",
    "cost": "@torch.no_grad()\ndef cost(x):\n    p = x.sigmoid()\n    return -(p + 1e-8).log()",
}


@pytest.mark.parametrize("way", ADDED)
def test_a_constant_is_added(look_at: LookAt, way: str) -> None:
    (found,) = look_at(ADDED[way])
    assert (found.pattern, found.cause) == ("log_of_softmax", "num.log_softmax_eps")
    assert "log(p + 1e-08) = -18.42 instead of -27.63" in found.shown


def test_the_constant_in_the_code_is_the_one_that_is_shown(look_at: LookAt) -> None:
    (found,) = look_at("lp = torch.log(torch.softmax(x, -1) + 1e-5)")
    assert "log(p + 1e-05) = -11.51" in found.shown


@pytest.mark.parametrize("way", PLAIN)
def test_nothing_is_added(look_at: LookAt, way: str) -> None:
    (found,) = look_at(PLAIN[way])
    assert found.cause == "num.log_softmax_eps"
    assert "log(softmax) = -inf, log_softmax = -110.0" in found.shown


@pytest.mark.parametrize("way", SPARES)
def test_what_is_exact_or_another_thing(look_at: LookAt, way: str) -> None:
    assert look_at(SPARES[way]) == []
