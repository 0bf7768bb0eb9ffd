"""Further forward passes on a few rows before the update: again, in another layout, in full."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from firstbad_recorder.probes.untouched import same_random
from firstbad_recorder.trl.micro import Micro

PLACES = 512
"""Whose logits are looked at together: several copies of them are made."""


def recheck(micro: Micro, trainer: Any, n_rows: int) -> None:
    """The same pass once more, nothing changed."""
    passed = micro.passed
    assert passed is not None
    with _aside():
        micro.checked["recheck"] = passed.again()[0].float()


def layout(micro: Micro, trainer: Any, n_rows: int) -> None:
    """One row a pass, without padding.

    A row without a token that is scored is passed as well: all processes make as many passes.
    """
    import torch

    passed = micro.passed
    assert passed is not None
    if passed.alone is None:
        return
    found = _blank(micro)
    with _aside():
        for i in range(min(n_rows, passed.ids.shape[0])):
            seen = passed.attended[i].bool()
            places = seen[-passed.width :].nonzero().squeeze(1)
            width = min(len(places), int(seen.sum()) - 1)
            seen = seen if width > 0 else torch.ones_like(seen)
            ids = passed.ids[i, seen].unsqueeze(0)
            alone = passed.alone(ids, torch.ones_like(ids), max(width, 1))[0]
            if width > 0:
                found[i, places[-width:]] = alone[0].float()
    micro.checked["layout"] = found


def varentropy(micro: Micro, trainer: Any, n_rows: int) -> None:
    """Variance of -log p under p at each place, from logits at the sampler's temperature."""
    passed = micro.passed
    assert passed is not None
    if passed.alone is None:
        return
    found = _blank(micro)
    with _aside():
        for i in range(min(n_rows, passed.ids.shape[0])):
            row = slice(i, i + 1)
            out = trainer.model(input_ids=passed.ids[row], attention_mask=passed.attended[row])
            logits = out.logits[0, -passed.width - 1 : -1]
            own = found[i, -logits.shape[0] :]
            for start in range(0, logits.shape[0], PLACES):
                part = logits[start : start + PLACES].float() / float(trainer.temperature)
                own[start : start + PLACES] = _spread(part)
    micro.checked["varentropy"] = found


def _spread(logits: Any) -> Any:
    """(N,) variance of -log p of (N, V) logits."""
    import torch

    logp = torch.log_softmax(logits, dim=-1)
    p = logp.exp()
    # 0 log 0 is 0: a token that can't come adds nothing
    first = torch.nan_to_num(p * logp).sum(-1)
    second = torch.nan_to_num(p * logp * logp).sum(-1)
    return (second - first * first).clamp(min=0)


CHECKS = (recheck, layout, varentropy)
"""Each fills its own array of `micro.checked`, (R, W), NaN where it was not made."""
ARRAYS = {"recheck": "logp_recheck", "layout": "logp_layout", "varentropy": "varentropy"}
"""What these are called in a record."""


def _blank(micro: Micro) -> Any:
    import torch

    assert micro.passed is not None
    return torch.full_like(micro.passed.logp, float("nan"), dtype=torch.float32)


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Without gradients, and random numbers as if it had not been."""
    import torch

    with torch.no_grad(), same_random():
        yield
