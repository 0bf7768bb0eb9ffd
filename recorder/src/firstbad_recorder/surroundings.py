"""What a run depends on besides its settings: library versions, and variables by allow-list."""

from __future__ import annotations

import os
import re
from importlib import metadata

from firstbad_recorder.secrets import is_secret

LIBRARIES = (
    "accelerate", "bitsandbytes", "datasets", "deepspeed", "flash-attn", "liger-kernel",
    "megatron-core", "ms-swift", "numpy", "openrlhf", "peft", "ray", "sglang", "tensordict",
    "tokenizers", "torch", "transformer-engine", "transformers", "trl", "triton", "unsloth", "verl",
    "vllm", "xformers",
)  # fmt: skip
_ALLOWED = re.compile(
    r"(?:ACCELERATE|ATTN|CUBLAS|CUDA|DS|FLASH|FSDP|MKL|NCCL|NVIDIA|OMP|PYTORCH|RAY|SGLANG|SLURM|TORCH"
    r"|TRITON|TRL|VERL|VLLM|XLA)_[A-Z0-9_]+"
    r"|WORLD_SIZE|LOCAL_WORLD_SIZE|RANK|LOCAL_RANK|TOKENIZERS_PARALLELISM|PYTHONHASHSEED"
)


def surroundings() -> dict[str, dict[str, str]]:
    """`versions` and `environment` of this process, for `Recorder(path, **surroundings())`.

    Nothing is imported to find out a version. Of the environment only variables that bear on the
    numbers are taken, and none whose name speaks of a secret.
    """
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    environment = {
        name: value
        for name, value in sorted(os.environ.items())
        if _ALLOWED.fullmatch(name) and not is_secret(name)
    }
    return {"versions": versions, "environment": environment}
