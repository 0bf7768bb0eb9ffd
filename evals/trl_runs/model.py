"""The tokenizer, the tiny model and its warm start on noisy demonstrations."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from firstbad.evals.trl_runs.task import VOCAB, WarmStart, demonstration

BATCH_SIZE = 64
PEAK_LEARNING_RATE = 3e-3
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


def make_tokenizer() -> Any:
    """Word-level tokenizer with 37 words; text is split at white space."""
    words = {word: i for i, word in enumerate(VOCAB)}
    core = Tokenizer(models.WordLevel(words, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A $B:1", special_tokens=[]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        unk_token="<|unk|>",
        additional_special_tokens=["<|im_start|>", "<|endoftext|>"],
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(seed: int) -> Any:
    """A randomly initialised Qwen2-shaped model of 0.14 million parameters."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(VOCAB),
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=3,
        pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return Qwen2ForCausalLM(config)


def warm_start(start: WarmStart, folder: Path) -> Path:
    """Train the model on noisy demonstrations once, cached under `folder`; returns its folder."""
    path = folder / start.name
    if (path / "config.json").exists():
        return path
    tokenizer, model, rng = make_tokenizer(), make_model(start.seed), random.Random(start.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=PEAK_LEARNING_RATE, total_steps=start.steps
    )
    for _ in range(start.steps):
        ids, labels = _batch(tokenizer, rng, start)
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _batch(tokenizer: Any, rng: random.Random, start: WarmStart) -> tuple[Any, Any]:
    """Ids and labels of one batch of demonstrations, with the loss on the replies."""
    rows, starts = [], []
    for _ in range(BATCH_SIZE):
        prompt, reply = demonstration(rng, start)
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        head = tokenizer(text)["input_ids"]
        rows.append(head + tokenizer(reply + " <|im_end|>")["input_ids"])
        starts.append(len(head))
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    labels = ids.clone()
    for i, row in enumerate(rows):
        labels[i, : starts[i]] = -100
        labels[i, len(row) :] = -100
    return ids, labels
