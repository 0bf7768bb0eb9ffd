"""Further forward passes on a few rows before the update: again, in another layout, in full."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from firstbad_recorder.trl.micro import Micro


def recheck(micro: Micro, trainer: Any, n_rows: int) -> None:
    """The same pass once more, nothing changed."""
    passed = micro.passed
    assert passed is not None
    with _aside(micro):
        again = passed.again(passed.ids, passed.attended, passed.width)[0]
        micro.checked["recheck"] = again.float()


def layout(micro: Micro, trainer: Any, n_rows: int) -> None:
    """One row a pass, without padding."""
    import torch

    passed = micro.passed
    assert passed is not None
    found = _blank(micro)
    with _aside(micro):
        for i in range(min(n_rows, passed.ids.shape[0])):
            seen = passed.attended[i].bool()
            ids = passed.ids[i, seen].unsqueeze(0)
            places = seen[-passed.width :].nonzero().squeeze(1)
            width = min(len(places), ids.shape[1] - 1)
            if width < 1:
                continue
            alone = passed.again(ids, torch.ones_like(ids), width)[0]
            found[i, places[-width:]] = alone[0].float()
    micro.checked["layout"] = found


def varentropy(micro: Micro, trainer: Any, n_rows: int) -> None:
    """Variance of -log p under p at each place, from logits at the sampler's temperature."""
    import torch

    passed = micro.passed
    assert passed is not None
    model = trainer.accelerator.unwrap_model(trainer.model)
    found = _blank(micro)
    with _aside(micro):
        for i in range(min(n_rows, passed.ids.shape[0])):
            row = slice(i, i + 1)
            out = model(input_ids=passed.ids[row], attention_mask=passed.attended[row])
            logits = out.logits[0, -passed.width - 1 : -1].float() / float(trainer.temperature)
            logp = torch.log_softmax(logits, dim=-1)
            p = logp.exp()
            # 0 log 0 is 0: a token that can't come adds nothing
            first = torch.nan_to_num(p * logp).sum(-1)
            second = torch.nan_to_num(p * logp * logp).sum(-1)
            found[i, -logits.shape[0] :] = (second - first * first).clamp(min=0)
    micro.checked["varentropy"] = found


CHECKS = (recheck, layout, varentropy)
"""Each fills its own array of `micro.checked`, (R, W), NaN where it was not made."""


def _blank(micro: Micro) -> Any:
    import torch

    assert micro.passed is not None
    return torch.full_like(micro.passed.logp, float("nan"), dtype=torch.float32)


@contextlib.contextmanager
def _aside(micro: Micro) -> Iterator[None]:
    """Without gradients, and random numbers as if it had not been."""
    import torch

    assert micro.passed is not None
    device = micro.passed.ids.device
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        yield
