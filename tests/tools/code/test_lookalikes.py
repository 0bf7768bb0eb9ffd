"""Whole functions as trainers write them: nothing is found in the sound ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LookAt = Callable[..., list[Any]]
SOUND = {
    "clipped objective": """
        def policy_loss(log_prob, old_log_prob, adv, mask, eps):
            minus_kl = log_prob - old_log_prob
            minus_kl = torch.clamp(minus_kl, min=-20.0, max=20.0)
            ratio = torch.exp(minus_kl)
            losses = torch.maximum(-adv * ratio, -adv * torch.clamp(ratio, 1 - eps, 1 + eps))
            return masked_mean(losses, mask)
        """,
    "ratio of a sequence": """
        def sequence_ratio(logp, old_logp, mask):
            mean = ((logp - old_logp) * mask).sum(-1) / mask.sum(-1).clamp(min=1)
            log_ratio = logp - logp.detach() + mean.detach().unsqueeze(-1)
            return torch.exp(torch.clamp(log_ratio, max=10.0))
        """,
    "k3": """
        def kl(logp, ref_logp):
            d = (ref_logp - logp).clamp(-20, 20)
            return (d.exp() - d - 1).clamp(-10, 10)
        """,
    "weight of another sampler": """
        def weight(old_logps, rollout_logps, loss, mask):
            w = torch.exp(torch.clamp(old_logps - rollout_logps, -20, 20)).clamp(max=2)
            return (loss * w.detach() * mask).sum() / mask.sum()
        """,
    "leave one out": """
        def advantages(rewards, k):
            grid = rewards.reshape(k, -1)
            adv = grid - (grid.sum(0) - grid) / (k - 1)
            return (adv - adv.mean()) / (adv.std() + 1e-8)
        """,
    "groups in columns": """
        def advantages(rewards, num_generations):
            grid = rewards.view(num_generations, -1)
            return (grid - grid.mean(0)) / (grid.std(0) + 1e-4)
        """,
    "group by group": """
        def advantages(groups):
            return torch.cat([(r - r.mean()) / (r.std() + 1e-6) for r in groups])
        """,
    "whitening": """
        def whiten(values, mask):
            mean, var = masked_mean(values, mask), masked_var(values, mask)
            return (values - mean) * torch.rsqrt(var + 1e-8)
        """,
    "entropy": """
        def entropy(logits):
            p = torch.softmax(logits, dim=-1)
            return torch.logsumexp(logits, dim=-1) - (p * logits).sum(-1)
        """,
    "attention": """
        def attend(q, k, mask):
            w = (q @ k.mT).masked_fill(mask == 0, float("-inf"))
            e = torch.exp(w - w.max(-1, keepdim=True).values)
            return e / e.sum(-1, keepdim=True)
        """,
    "sum over a token count": """
        def accumulate(model, micro_batches, optimizer):
            n_tokens = sum(mb["mask"].sum() for mb in micro_batches)
            for mb in micro_batches:
                loss = (token_losses(model, mb) * mb["mask"]).sum() / n_tokens
                loss.backward()
        """,
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found(look_at: LookAt, name: str) -> None:
    assert look_at(SOUND[name]) == []
