"""Log-probs of 16 bits in a difference: rounded before it, not after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.code.low_precision import to_bfloat16

LookAt = Callable[..., list[Any]]
FIRES = {
    "method": "r = logp.bfloat16() - old_logp.bfloat16()",
    "to": "import torch\nr = logp.to(torch.bfloat16) - old_logp.to(torch.bfloat16)",
    "keyword": "import torch as t\nr = logp.to(dtype=t.bfloat16) - old_logp",
    "type": "r = old_logp - logp.type(torch.bfloat16)",
    "imported": "from torch import bfloat16\nr = logp.to(bfloat16) - old_logp",
    "name of the type": "LOW = torch.bfloat16\nr = logp.to(LOW) - old_logp",
    "variable": "lp = F.log_softmax(x, -1)\nlp = lp.bfloat16()\nr = lp - old_logp",
    "widened too late": "lp = logp.bfloat16()\nr = lp.float() - old_logp.float()",
    "log_softmax of 16 bits": "lp = F.log_softmax(x.bfloat16(), -1)\nr = lp - old_logp",
    "type of log_softmax": "r = F.log_softmax(x, -1, dtype=torch.bfloat16) - old_logp",
    "sums": "r = logps.bfloat16().sum(-1) - old_logps.sum(-1)",
    "jax": "import jax.numpy as jnp\nr = logp.astype(jnp.bfloat16) - old_logp",
    "text": "r = logp.astype('bfloat16') - old_logp",
}
SPARES = {
    "float32": "r = logp.float() - old_logp.float()",
    "to float32": "r = logp.to(torch.float32) - old_logp",
    "after": "r = (logp - old_logp).bfloat16()",
    "logits widened": "lp = F.log_softmax(x.bfloat16().float(), -1)\nr = lp - old_logp",
    "type of log_softmax": "r = F.log_softmax(x.half(), -1, dtype=torch.float32) - old_logp",
    "no log-probs": "d = rewards.bfloat16() - baseline",
    "another name later": "r = logp - old_logp\nlogp = logp.bfloat16()",
    "autocast": "with torch.autocast('cuda', dtype=torch.bfloat16):\n    r = logp - old_logp",
    "model": "model = model.to(torch.bfloat16)\nr = logp - old_logp",
    "device": "r = logp.to('cuda') - old_logp.to(device)",
}


@pytest.mark.parametrize("way", FIRES)
def test_rounded_before_the_difference(look_at: LookAt, way: str) -> None:
    (found,) = look_at(FIRES[way])
    assert (found.pattern, found.cause) == ("low_precision", "num.low_precision_logprob")
    assert "-1.503 - -1.500 = -0.0030 in float32 and 0.0000 from bfloat16" in found.shown


def test_float16_leaps_as_well(look_at: LookAt) -> None:
    for code in ("r = logp.half() - old_logp", "r = logp.to(torch.float16) - old_logp"):
        (found,) = look_at(code)
        assert "from float16" in found.shown


@pytest.mark.parametrize("way", SPARES)
def test_not_rounded_before_the_difference(look_at: LookAt, way: str) -> None:
    assert look_at(SPARES[way], "low_precision") == []


def test_rounding_is_that_of_bfloat16() -> None:
    given = np.array([1.0, 1.00390625, 1.01171875, -1.503, 0.0], np.float32)
    # A tie goes to the even neighbour: 1 + 2^-8 down to 1, 1 + 3 * 2^-8 up to 1 + 2^-6.
    expected = np.array([1.0, 1.0, 1.015625, -1.5, 0.0], np.float32)
    np.testing.assert_array_equal(to_bfloat16(given), expected)
