"""exp of log-ratios: what nothing limits is found however it is written, what is limited is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LookAt = Callable[..., list[Any]]
FIRES = {
    "function": "import torch\nratio = torch.exp(logp - old_logp)",
    "method": "ratio = (log_probs - old_log_probs).exp()",
    "in place": "diff = new_logps - old_logps\ndiff.exp_()",
    "alias": "import torch as t\nratio = t.exp(logps - logps_old)",
    "imported": "from torch import exp as e\nratio = e(log_prob - old_log_prob)",
    "function in a variable": "import torch\nf = torch.exp\nratio = f(logp - old_logp)",
    "jax": "import jax.numpy as jnp\nratio = jnp.exp(logp - old_logp)",
    "local variable": "log_ratio = logp - old_logp\nx = log_ratio\nratio = torch.exp(x)",
    "walrus": "ratio = torch.exp((lr := logp - old_logp))",
    "keyword": "ratio = torch.exp(input=logp - old_logp)",
    "keys": "ratio = torch.exp(batch['log_probs'] - batch['old_log_probs'])",
    "attributes": "ratio = torch.exp(self.logp - batch.old_logp)",
    "sums per sequence": "ratio = ((logp - old_logp) * mask).sum(-1).exp()",
    "in a function": (
        "def f(a, old_logp):\n    lp = F.log_softmax(a, -1)\n    return (lp - old_logp).exp()"
    ),
    "k3": "kl = torch.exp(ref_logp - logp) - (ref_logp - logp) - 1",
    "expm1": "kl = torch.expm1(ref_logps - logps) - (ref_logps - logps)",
    "selected": "ratio = torch.exp(torch.where(mask, logp - old_logp, 0.0))",
    "lower limit alone": "ratio = torch.exp(torch.clamp(logp - old_logp, min=-20))",
    "limit beyond": "ratio = torch.exp((logp - old_logp).clamp(-100, 100))",
    "limit of another": (
        "log_ratio = logp - old_logp\nkl = log_ratio.clamp(max=5)\nr = log_ratio.exp()"
    ),
}
AFTER = {
    "function": "r = torch.exp(logp - old_logp)\nr = torch.clamp(r, max=10)",
    "method": "r = (logp - old_logp).exp().clamp(max=10.0)",
    "clip": "import torch as t\nr = t.clip(t.exp(logp - old_logp), 0.1, 10)",
    "PPO clip": "r = torch.exp(logp - old_logp)\nr2 = torch.clamp(r, 1 - eps, 1 + eps)",
    "variable": "e = (logp - old_logp).exp()\nx = e\ny = x.clamp_(0, 5)",
    "minimum": "r = torch.minimum(torch.exp(logp - old_logp), cap)",
    "not seen where it is made": "def f(log_ratio):\n    return log_ratio.exp().clamp(max=10)",
}
SPARES = {
    "clamp": "ratio = torch.exp(torch.clamp(logp - old_logp, -20, 20))",
    "method clamp": "ratio = (logp - old_logp).clamp(min=-20, max=20).exp()",
    "clamp in a variable": "x = logp - old_logp\nx = torch.clamp(x, max=20.0)\nratio = x.exp()",
    "clamp in place": "x = logp - old_logp\nx.clamp_(-10, 10)\nratio = torch.exp(x)",
    "clamp_max": "ratio = torch.exp((logp - old_logp).clamp_max(10))",
    "constant of the module": (
        "MOST = 20.0\ndef f():\n    return torch.exp((logp - old_logp).clamp(max=MOST))"
    ),
    "setting": "ratio = torch.exp(torch.clamp(logp - old_logp, max=self.max_log_ratio))",
    "alias clip": "import jax.numpy as jnp\nr = jnp.exp(jnp.clip(logp - old_logp, -20, 20))",
    "minimum": "ratio = torch.exp(torch.minimum(logp - old_logp, most))",
    "min of two": "ratio = torch.exp(torch.min(logp - old_logp, most))",
    "where": "x = logp - old_logp\nratio = torch.exp(torch.where(x > 20, 20.0, x))",
    "by index": "x = logp - old_logp\nx[x > 20] = 20\nratio = x.exp()",
    "clamped by a mean": "x = (logp - old_logp).clamp(-1, 2)\nr = ((x * mask).sum(-1) / n).exp()",
    "no gradient": "with torch.no_grad():\n    ratio = torch.exp(logp - old_logp)",
    "decorated": "@torch.no_grad()\ndef kl():\n    return torch.exp(ref_logp - logp)",
    "detached": "weight = torch.exp((logp - old_logp).detach()).clamp(max=2)",
    "no gradient on either side": "w = torch.exp(old_logps - rollout_logps).clamp(max=2)",
    "zero with a gradient": "r = torch.exp(logp - logp.detach())",
    "probability": "p = torch.exp(logp)\nq = logp.exp().clamp(max=1)",
    "softmax": "e = torch.exp(x - x.max(-1, keepdim=True).values)",
    "normalised": "p = torch.exp(logits - torch.logsumexp(logits, -1))",
    "schedule": "import math\nlr = math.exp(-step / decay)",
    "not seen where it is made": "def f(log_ratio):\n    return torch.exp(log_ratio)",
    "PPO clip of what is not seen": (
        "def f(log_ratio):\n    return log_ratio.exp().clamp(1 - e, 1 + e)"
    ),
    "numpy of an analysis": "import numpy as np\nr = np.exp(logp - old_logp).mean()",
}


@pytest.mark.parametrize("way", FIRES)
def test_nothing_limits_the_log_ratio(look_at: LookAt, way: str) -> None:
    (found,) = look_at(FIRES[way])
    assert (found.pattern, found.cause) == ("exp_before_clamp", "num.exp_overflow")
    assert found.line == FIRES[way].count("\n") + 1
    assert "exp" in found.code or "f(" in found.code or found.code.startswith("e(")
    assert "limits only the result" not in found.why


@pytest.mark.parametrize("way", AFTER)
def test_only_the_result_is_limited(look_at: LookAt, way: str) -> None:
    (found,) = look_at(AFTER[way], "exp_before_clamp")
    assert "limits only the result" in found.why
    assert "exp(100) = inf" in found.shown
    assert "0 x inf = nan" in found.shown


@pytest.mark.parametrize("way", SPARES)
def test_what_is_limited_or_no_log_ratio(look_at: LookAt, way: str) -> None:
    assert look_at(SPARES[way], "exp_before_clamp") == []


@pytest.mark.parametrize(
    "code",
    [
        "r = torch.exp(torch.clamp(logp - old_logp, -0.2, 0.2))",
        "r = (logp - old_logp).clamp(min=-0.2, max=0.2).exp()",
        "import torch as t\nE = 0.2\nx = t.clip(logp - old_logp, -E, E)\nr = t.exp(x)",
    ],
)
def test_a_limit_that_works_as_a_clip(look_at: LookAt, code: str) -> None:
    (found,) = look_at(code)
    assert found.cause == "num.clamp_in_objective"
    assert "exp(-0.2) = 0.8187 and exp(0.2) = 1.2214" in found.shown


@pytest.mark.parametrize("most", ["10", "20.0", "1.5", "self.limit", "None"])
def test_a_guard_far_outside_is_no_clip(look_at: LookAt, most: str) -> None:
    code = f"r = torch.exp((logp - old_logp).clamp(-20, {most}))"
    assert look_at(code, "tight_limit") == []


@pytest.mark.parametrize(
    "code",
    [
        "z = torch.log(torch.exp(logits).sum(-1))",
        "z = logits.exp().sum(dim=-1).log()",
        "import jax.numpy as j\ne = j.exp(logits)\nz = j.log(j.sum(e, axis=-1))",
    ],
)
def test_log_of_a_sum_of_exps(look_at: LookAt, code: str) -> None:
    (found,) = look_at(code)
    assert found.pattern == "log_of_sum"
    assert "inf instead of 100.3133" in found.shown


@pytest.mark.parametrize(
    "code",
    [
        "z = torch.logsumexp(logits, -1)",
        "m = x.max()\nz = torch.log(torch.exp(x - m).sum(-1)) + m",
        "z = torch.log(p.sum(-1))",
    ],
)
def test_sums_that_do_not_overflow(look_at: LookAt, code: str) -> None:
    assert look_at(code) == []
