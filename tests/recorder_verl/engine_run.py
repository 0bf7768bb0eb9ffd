"""A script: verl's own worker and FSDP engine train a tiny model, in one process on a CPU.

verl 0.9.1 knows no CPU: what it asks of a device is answered here, and a class that it takes from
TRL is made up, since TRL 1.16 no longer has it. Prints what verl says of the updates.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

WIDTH, N_RESPONSE, N_ROWS = 4, 6, 8


class Cpu:
    """In the place of `torch.cuda`."""

    def __getattr__(self, name: str) -> Any:
        numbers = {"mem_get_info": (1, 1), "current_device": "cpu", "is_available": False}
        if name.endswith(("_allocated", "_reserved", "_count")):
            numbers[name] = 0
        return lambda *args, **more: numbers.get(name)


def make_model(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaForCausalLM(
        LlamaConfig(vocab_size=64, pad_token_id=0, eos_token_id=1, bos_token_id=2, **sizes, **heads)
    ).save_pretrained(folder)
    words = models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w3")
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), eos_token="w1", pad_token="w0"
    ).save_pretrained(folder)


def main(folder: Path) -> None:
    os.environ.update(
        RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29511",  # read, not used: the group is made below
        VERL_ENGINE_DEVICE="cuda",  # the name under which the engine is registered
    )  # fmt: skip
    import torch

    torch.manual_seed(0)
    make_model(folder / "model")
    with suppress(ImportError):
        import trl

        trl.AutoModelForCausalLMWithValueHead = type("Absent", (), {})
    import verl.utils.device as device

    replaced = {
        "get_device_name": "cpu", "get_torch_device": Cpu(), "get_device_id": torch.device("cpu"),
        "get_nccl_backend": "gloo", "set_expandable_segments": None,
    }  # fmt: skip
    for name, value in replaced.items():
        setattr(device, name, lambda *args, found=value, **more: found)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1
    )
    from tensordict import TensorDict
    from verl.trainer.config import CheckpointConfig
    from verl.utils import tensordict_utils as tu
    from verl.workers import config as configs
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker, ppo_loss
    from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

    worker = TrainingWorker(
        configs.TrainingWorkerConfig(
            model_type="language_model",
            model_config=configs.HFModelConfig(
                path=str(folder / "model"),
                use_remove_padding=False,
                override_config={"attn_implementation": "eager"},
            ),
            engine_config=configs.FSDPEngineConfig(
                strategy="fsdp2",
                forward_only=False,
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=2,
                infer_micro_batch_size_per_gpu=4,
                use_torch_compile=False,
            ),
            optimizer_config=configs.FSDPOptimizerConfig(lr=1e-2, total_training_steps=10),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.flops_counter = None  # of no CPU it knows the speed
    worker.reset()
    actor = configs.ActorConfig(strategy="fsdp2", rollout_n=2, ppo_micro_batch_size_per_gpu=2)
    worker.set_loss_fn(partial(ppo_loss, config=actor))

    attended = torch.ones(N_ROWS, WIDTH + N_RESPONSE, dtype=torch.long)
    attended[0, 0] = attended[1, -1] = attended[1, -2] = 0
    ids = torch.randint(4, 64, attended.shape) * attended
    tensors = {
        "input_ids": ids,
        "prompts": ids[:, :WIDTH],
        "responses": ids[:, WIDTH:],
        "attention_mask": attended,
        "position_ids": (attended.cumsum(1) - 1).clamp(min=0),
        "response_mask": attended[:, WIDTH:].clone(),
        "advantages": torch.randn(N_ROWS, 1).expand(N_ROWS, N_RESPONSE).contiguous(),
    }
    data = left_right_2_no_padding(TensorDict(tensors, batch_size=[N_ROWS]))
    asked = data.clone()
    tu.assign_non_tensor(asked, calculate_entropy=True, compute_loss=False, temperature=1.0)
    scored = tu.get(worker.infer_batch(asked), "log_probs")
    data["old_log_probs"] = no_padding_2_padding(scored, data).float()
    tu.assign_non_tensor(
        data, calculate_entropy=True, compute_loss=True, temperature=1.0, global_batch_size=4,
        mini_batch_size=4, epochs=1, seed=1, dataloader_kwargs={"shuffle": False},
        distillation_use_topk=False,
    )  # fmt: skip
    metrics = tu.get(worker.train_mini_batch(data), "metrics")
    # The weights are delivered under a number; there is no engine that could take them here.
    with suppress(AttributeError):
        asyncio.run(object.__new__(ActorRolloutRefWorker).update_weights(global_steps=7))
    found = {name: [float(v) for v in metrics[name]] for name in ("loss", "grad_norm")}
    found["tokens"] = [int(n) for n in attended[:, WIDTH:].sum(1)]
    print(json.dumps({"engine": type(worker.engine).__name__, **found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
