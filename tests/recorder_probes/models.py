"""A small language model that tests run: embeddings of token and position, one hidden layer."""

from __future__ import annotations

from typing import Any

V, WIDTH, PLACES = 13, 16, 32


def small_model(dropout: float = 0.0, seed: int = 0, deep: int = 1) -> Any:
    """Modules by name; `forward` runs them."""
    import torch

    torch.manual_seed(seed)
    layers = {
        "token": torch.nn.Embedding(V, WIDTH),
        "place": torch.nn.Embedding(PLACES, WIDTH),
        "mix": torch.nn.Sequential(
            *(
                torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
                for _ in range(deep)
            )
        ),
        "drop": torch.nn.Dropout(dropout),
        "head": torch.nn.Linear(WIDTH, V),
    }
    return torch.nn.ModuleDict(layers)


def forward(model: Any, token_id: Any, attention_mask: Any = None, position: Any = None) -> Any:
    """(R, L, V) logits; a token sees the mean of those before it that attention lets it see."""
    import torch

    seen = torch.ones_like(token_id) if attention_mask is None else attention_mask
    place = torch.arange(token_id.shape[1])[None] if position is None else position
    hidden = (model["token"](token_id) + model["place"](place)) * seen[..., None]
    mean = hidden.cumsum(1) / seen.cumsum(1).clamp(min=1)[..., None]
    return model["head"](model["drop"](model["mix"](mean)))
