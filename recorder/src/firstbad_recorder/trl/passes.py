"""Further forward passes on a few rows before the update: again, in another layout, in full."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from firstbad_recorder.trl.micro import Micro


def check(micro: Micro, trainer: Any, n_rows: int) -> None:
    """Fill `micro.checked` for the first rows: `recheck`, `layout`, `varentropy`.

    recheck: the same pass once more. layout: one row a pass, without padding. varentropy: of the
    whole distribution at each place, from logits. Random numbers are as if this had not been.
    """
    import torch

    passed = micro.passed
    assert passed is not None
    blank = torch.full_like(passed.logp, float("nan"), dtype=torch.float32)
    rows = min(n_rows, passed.ids.shape[0])
    with torch.no_grad(), _same_random(passed.ids.device):
        again = passed.again(passed.ids, passed.attended, passed.width)[0]
        micro.checked["recheck"] = again.float()
        layout = blank.clone()
        for i in range(rows):
            seen = passed.attended[i].bool()
            ids = passed.ids[i, seen].unsqueeze(0)
            places = seen[-passed.width :].nonzero().squeeze(1)
            width = min(len(places), ids.shape[1] - 1)
            if width < 1:
                continue
            alone = passed.again(ids, torch.ones_like(ids), width)[0]
            layout[i, places[-width:]] = alone[0].float()
        micro.checked["layout"] = layout
        micro.checked["varentropy"] = _varentropy(micro, trainer, blank, rows)


def _varentropy(micro: Micro, trainer: Any, blank: Any, rows: int) -> Any:
    """(R, W) variance of -log p under p, at the temperature of the sampler."""
    import torch

    passed = micro.passed
    assert passed is not None
    model = trainer.accelerator.unwrap_model(trainer.model)
    found = blank.clone()
    for i in range(rows):
        out = model(input_ids=passed.ids[i : i + 1], attention_mask=passed.attended[i : i + 1])
        logits = out.logits[0, -passed.width - 1 : -1].float() / float(trainer.temperature)
        logp = torch.log_softmax(logits, dim=-1)
        p = logp.exp()
        # 0 log 0 is 0: a token that can't come adds nothing
        first = torch.nan_to_num(p * logp).sum(-1)
        second = torch.nan_to_num(p * logp * logp).sum(-1)
        found[i, -logits.shape[0] :] = (second - first * first).clamp(min=0)
    return found


@contextlib.contextmanager
def _same_random(device: Any) -> Iterator[None]:
    import torch

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
