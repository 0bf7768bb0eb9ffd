"""Stand-ins at masked places: found where they enter arithmetic, not where a softmax takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LookAt = Callable[..., list[Any]]
FIRES = {
    "sum": "x = logps.masked_fill(~mask, -1e9)\nloss = x.sum()",
    "mean": "x = torch.masked_fill(logps, ~mask, float('-inf'))\nloss = torch.mean(x)",
    "where": "import torch as t\nx = t.where(mask, logps, -t.inf)\nloss = x.sum(-1)",
    "in place": "logps.masked_fill_(~mask, -1e9)\nloss = logps.mean()",
    "by index": "logps[~mask] = -1e9\nloss = (logps).sum()",
    "finfo": "x = kl.masked_fill(~mask, torch.finfo(kl.dtype).min)\nloss = x.mean()",
    "arithmetic": "x = logp * mask + (1 - mask) * -1e9\nloss = x.sum()",
    "constant": "NEG = -1e9\ndef f(logp, mask):\n    return torch.where(mask, logp, NEG).mean()",
    "chained": "loss = logp.masked_fill(~mask, float('-inf')).squeeze(-1).sum()",
    "small one, logged": "p = probs.masked_fill(~mask, 1e-8)\nloss = -torch.log(p).sum()",
    "masked mean": "x = logps.masked_fill(~mask, -1e9)\nloss = masked_mean(x, keep)",
}
PRODUCTS = {
    "after": "x = logps.masked_fill(~mask, float('-inf'))\nloss = (x * mask).sum()",
    "before": "x = torch.where(mask, logps, -torch.inf)\ny = mask * x",
    "in place": "logps[~valid] = -math.inf\ny = logps * valid.float()",
}
DIFFERENCES = {
    "one side": "a = logp.masked_fill(~mask, -1e9)\nr = a - old_logp",
    "other side": "r = logp - torch.where(mask, old_logp, -1e9)",
    "both infinite": (
        "a = logp.masked_fill(~mask, -torch.inf)\nb = old_logp.masked_fill(~mask, -torch.inf)\n"
        "r = a - b"
    ),
}
SPARES = {
    "softmax": "s = scores.masked_fill(~mask, -1e9)\nw = torch.softmax(s, -1).sum()",
    "log_softmax": "s = logits.masked_fill(~mask, float('-inf'))\nlp = F.log_softmax(s, -1)",
    "attention": "s = scores + torch.zeros(3).masked_fill(m, float('-inf'))",
    "top": "s = logits.masked_fill(~mask, -1e9)\nbest = s.max(-1)",
    "stable softmax": "s = x.masked_fill(~m, -1e9)\ne = torch.exp(s - s.max())",
    "zero": "loss = logps.masked_fill(~mask, 0.0).sum()",
    "where zero": "loss = torch.where(mask, logps, 0).sum()",
    "product": "loss = (logps * mask).sum()",
    "selected": "loss = logps[mask].mean()",
    "finite one times 0": "x = logps.masked_fill(~mask, -1e9)\ny = x * mask",
    "both the same": "a = logp.masked_fill(~m, 1e4)\nb = old_logp.masked_fill(~m, 1e4)\nr = a - b",
    "selected after": "a = logp.masked_fill(~m, -1e9)\nr = a - old_logp\nr = r.masked_fill(~m, 0)",
    "selected around": "a = logp.masked_fill(~m, -1e9)\nr = torch.where(m, a - old_logp, 0)",
    "small one": "loss = kl.masked_fill(~mask, 1e-8).sum()",
    "overwritten": "x = logp.masked_fill(~m, -1e9)\nx = torch.where(m, x, 0.0)\nloss = x.sum()",
    "counts": "n = torch.where(a > 0, 5000, 1)\nm = n.float()",
}


@pytest.mark.parametrize("way", FIRES)
def test_enters_a_sum(look_at: LookAt, way: str) -> None:
    (found,) = look_at(FIRES[way])
    assert (found.pattern, found.cause) == ("sentinel", "num.inf_sentinel")
    assert "instead of -1" in found.shown


@pytest.mark.parametrize("way", PRODUCTS)
def test_times_a_mask(look_at: LookAt, way: str) -> None:
    (found,) = look_at(PRODUCTS[way])
    assert "-inf x 0 = nan" in found.shown


@pytest.mark.parametrize("way", DIFFERENCES)
def test_enters_a_difference(look_at: LookAt, way: str) -> None:
    (found,) = look_at(DIFFERENCES[way], "sentinel")
    assert "difference of log-probs" in found.why
    shown = {"one side": "1e+09", "other side": "inf", "both infinite": "nan"}
    assert shown[way] in found.shown


@pytest.mark.parametrize("way", SPARES)
def test_taken_by_what_it_is_for(look_at: LookAt, way: str) -> None:
    assert look_at(SPARES[way], "sentinel") == []
