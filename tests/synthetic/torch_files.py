"""Write files as `torch.save` writes them, without torch: synthetic checkpoints for the tests."""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {"f8": "Double", "f4": "Float", "f2": "Half", "i8": "Long", "i4": "Int", "u1": "Byte"}


class Bf16:
    """An array that is stored as bfloat16: the upper half of each float32."""

    def __init__(self, values: Any) -> None:
        """`values` are cut off, not rounded."""
        self.bits = (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


class _Storage:
    def __init__(self, kind: str, data: bytes, numbers: int) -> None:
        self.kind, self.data, self.numbers = kind, data, numbers


def _torch() -> dict[str, types.ModuleType]:
    """Modules that a pickle may name; they hold what it names and do nothing."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for kind in (*KINDS.values(), "BFloat16"):
        setattr(torch, f"{kind}Storage", type(f"{kind}Storage", (), {"__module__": "torch"}))

    def _rebuild_tensor_v2(*_: object) -> None:
        raise AssertionError("a pickle was carried out")

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2  # type: ignore[attr-defined]
    return {"torch": torch, "torch._utils": utils}


class _Pickler(pickle.Pickler):
    """Tensors by what would rebuild them, their storages by name: torch's own way."""

    def __init__(self, stream: io.BytesIO, modules: Mapping[str, Any]) -> None:
        super().__init__(stream, protocol=2)
        self.modules = modules
        self.storages: dict[int, tuple[str, _Storage]] = {}
        self.kept: list[object] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Bf16):
            obj, kind = obj.bits, "BFloat16"
        elif isinstance(obj, np.ndarray):
            kind = KINDS[obj.dtype.str[1:]]
        else:
            return NotImplemented
        whole = obj if obj.base is None else obj.base
        each = obj.itemsize
        offset = obj.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        key = id(whole)
        self.kept.append(whole)
        if key not in self.storages:
            storage = _Storage(kind, whole.tobytes(), whole.size)
            self.storages[key] = (str(len(self.storages)), storage)
        strides = tuple(stride // each for stride in obj.strides)
        args: Any = (
            self.storages[key][1],
            offset // each,
            obj.shape,
            strides,
            False,
            OrderedDict(),
        )
        return self.modules["torch._utils"]._rebuild_tensor_v2, args

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _Storage):
            return None
        name = next(name for name, storage in self.storages.values() if storage is obj)
        kind = getattr(self.modules["torch"], f"{obj.kind}Storage")
        return ("storage", kind, name, "cpu", obj.numbers)


def save_torch(path: Path, value: object) -> None:
    """Write plain values with arrays in them as `torch.save` would write them with tensors.

    A view of an array shares its storage, with offset and strides.
    """
    modules = _torch()
    there = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    stream = io.BytesIO()
    try:
        pickler = _Pickler(stream, modules)
        pickler.dump(value)
    finally:
        for name, module in there.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", stream.getvalue())
        archive.writestr(f"{path.stem}/byteorder", "little")
        for name, storage in pickler.storages.values():
            archive.writestr(f"{path.stem}/data/{name}", storage.data)


def adam_state(
    *pairs: tuple[Any, Any],
    step: float,
    rate: float = 1e-4,
    betas: tuple[float, float] = (0.9, 0.999),
    **settings: object,
) -> dict[str, Any]:
    """The state of torch's AdamW from first and second moments, one parameter for each pair."""
    group = {
        **{"lr": rate, "betas": betas, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False},
        **settings,
        "params": list(range(len(pairs))),
    }
    state = {
        i: {"step": np.array(step, np.float32), "exp_avg": first, "exp_avg_sq": second}
        for i, (first, second) in enumerate(pairs)
    }
    return {"state": state, "param_groups": [group]}


def schedule_state(step: int, rate: float = 1e-4, base: float = 1e-4) -> dict[str, object]:
    """The state of a torch scheduler after `step` steps."""
    return {
        "base_lrs": [base],
        "last_epoch": step,
        "_step_count": step + 1,
        "_last_lr": [rate],
        "lr_lambdas": [{}],
    }


def moments_of(gradients: Any, betas: tuple[float, float] = (0.9, 0.999)) -> tuple[Any, Any]:
    """Adam's moments after these gradients, step by step from its definition, in float32."""
    first = np.zeros_like(np.asarray(gradients[0], np.float32))
    second = first.copy()
    for gradient in gradients:
        g = np.asarray(gradient, np.float32)
        first = (betas[0] * first + (1 - betas[0]) * g).astype(np.float32)
        second = (betas[1] * second + (1 - betas[1]) * g * g).astype(np.float32)
    return first, second


Save = Callable[[Path, object], None]
