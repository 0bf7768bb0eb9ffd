"""Watches every operation of a pass, and follows a value that is not finite back to its origin."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any

FILLS = ("fill", "full", "scalar_tensor", "where", "lift_fresh")
"""Parts of names of operations that write a constant: -Inf in a mask is no fault by itself."""
PLACES = {
    "log_softmax": "log_softmax",
    "logsumexp": "log_softmax",
    "gather": "logp",
    "index": "logp",
    "index_select": "logp",
    "sub": "log_ratio",
    "rsub": "log_ratio",
    "exp": "exp",
    "exp2": "exp",
    "expm1": "exp",
}
"""Place in the trail of FORMAT.md of operations outside the model, by their name."""
_HERE = __file__[: -len("origin.py")]


@dataclass
class Origin:
    """One operation whose result is not finite."""

    number: int
    """In the order of the pass."""
    name: str
    """As torch calls it, `exp` or `_softmax` say."""
    module: str
    """Path of the innermost module of the model that ran it; empty outside of the model."""
    where: str
    """File and line that called it, in backward that of the forward operation."""
    node: str | None
    """In backward: the step of autograd, `ExpBackward0` say."""
    place: str
    result: dict[str, Any]
    operands: list[dict[str, Any]]
    made_by: list[Origin] = field(default_factory=list, repr=False)
    """Earlier operations that made operands which are not finite already."""
    on_purpose: bool = False
    """It holds no NaN, and its infinities are constants, or carry on such ones."""

    def facts(self) -> dict[str, Any]:
        """Plain data.

        `operation`, `module`, `where`, `phase` (`forward` or `backward`), `node`, `result` and
        `operands` (entries of the trail), `given` (name of an operand that was not finite before
        the pass, such as a parameter or a part of the batch; None: this operation is the first).
        """
        before = (o["name"] for o in self.operands if o["n_nonfinite"] and not self.made_by)
        return {
            "operation": self.name,
            "phase": "forward" if self.node is None else "backward",
            "given": next(before, None),
            "module": self.module,
            "where": self.where,
            "node": self.node,
            "result": self.result,
            "operands": self.operands,
        }

    def trail(self) -> list[dict[str, Any]]:
        """Operands and result in the form of `numerics.json`."""
        before = [o for o in self.operands if o["place"] == "log_ratio"]
        return [*before, self.result]


class Watch:
    """Context in which operations of forward and backward are watched."""

    def __init__(self, model: Any, loss_mask: Any = None) -> None:
        """`model` gives the paths of modules; `loss_mask` (R, T) tells masked places."""
        self._model = model
        self._mask = loss_mask
        self._path: list[str] = []
        self._made: dict[int, Origin] = {}
        self._stored: dict[int, Origin] = {}
        """The first one that wrote into each storage: a view of it is another tensor."""
        self._forward: dict[int, tuple[str, str]] = {}
        self._held: list[Any] = []
        self._names = {id(p): f"parameter {name}" for name, p in model.named_parameters()}
        self._given = {
            p.untyped_storage().data_ptr() for p in model.parameters() if not is_finite(p.detach())
        }
        self._views: dict[Any, bool] = {}
        self._count = 0
        self._in_backward = False
        self._handles: list[Any] = []
        self._mode: Any = None

    def __enter__(self) -> Watch:
        """Hook the modules and begin to watch."""
        for name, module in self._model.named_modules():
            if name:
                enter, leave = self._hooks(name)
                self._handles += [
                    module.register_forward_pre_hook(enter),
                    module.register_forward_hook(leave, always_call=True),
                ]
        self._mode = _mode(self)
        self._mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Take all hooks off."""
        self._mode.__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def backward_begins(self) -> None:
        """What follows belongs to the backward pass."""
        self._in_backward = True

    def origin_of(self, tensor: Any) -> Origin | None:
        """The operation that a value which is not finite comes from.

        Constants that are infinite on purpose are passed over: where they spoil a number, the
        operation that did so is the origin.
        """
        last = self._made.get(id(tensor))
        while last is not None:
            before = [o for o in last.made_by if last.on_purpose or not o.on_purpose]
            if not before:
                return last
            last = min(before, key=lambda o: o.number)
        return None

    def _hooks(self, name: str) -> tuple[Any, Any]:
        def enter(module: Any, inputs: Any) -> None:
            self._path.append(name)

        def leave(module: Any, inputs: Any, output: Any) -> None:
            self._path.pop()

        return enter, leave

    def saw(self, operation: Any, inputs: list[Any], outputs: list[Any]) -> None:
        """Look at one operation after it ran."""
        import torch

        self._count += 1
        name = str(operation).split(".")[1]
        node = torch._C._current_autograd_node() if self._in_backward else None
        if not self._in_backward:
            path, where = (self._path[-1] if self._path else ""), _caller()
            self._forward.setdefault(torch.autograd._get_sequence_nr() - 1, (path, where))
        elif node is not None and node._sequence_nr() in self._forward:
            path, where = self._forward[node._sequence_nr()]
        else:
            path, where = "", ""
        if self._is_view(operation, inputs):
            return
        for tensor in outputs:
            if not is_finite(tensor):
                self._remember(name, path, where, node, inputs, tensor)
            else:
                self._made.pop(id(tensor), None)  # written over in place

    def _is_view(self, operation: Any, inputs: list[Any]) -> bool:
        """Whether the result only shows numbers again that are known to be finite."""
        if operation not in self._views:
            alias = [r.alias_info for r in operation._schema.returns]
            self._views[operation] = bool(alias) and all(a and not a.is_write for a in alias)
        known = all(
            id(t) not in self._made and t.untyped_storage().data_ptr() not in self._given
            for t in inputs
        )
        return self._views[operation] and known

    def _remember(
        self, name: str, path: str, where: str, node: Any, inputs: list[Any], tensor: Any
    ) -> None:
        place = self._place(name, path)
        made_by = [o for t in inputs if t is not tensor and (o := self._maker(t)) is not None]
        same = self._made.get(id(tensor))
        if same is not None:  # in place: what stood there before
            made_by.append(same)
        label = f"{path}/{name}" if path else name
        before = "log_ratio" if place == "exp" else place
        operands = [
            measured(self._names.get(id(t), f"operand {i + 1} of {label}"), before, t, self._mask)
            for i, t in enumerate(inputs)
            if t.is_floating_point() and t is not tensor
        ]
        constant = any(f in name for f in FILLS) or bool(made_by)
        self._made[id(tensor)] = Origin(
            number=self._count,
            name=name,
            module=path,
            where=where,
            node=None if node is None else node.name(),
            place=place,
            result=measured(label, place, tensor, self._mask),
            operands=operands,
            made_by=made_by,
            on_purpose=constant
            and not bool(tensor.isnan().any())
            and all(o.on_purpose for o in made_by),
        )
        self._held.append(tensor)  # so that its identity stays its own
        self._stored.setdefault(tensor.untyped_storage().data_ptr(), self._made[id(tensor)])

    def _maker(self, tensor: Any) -> Origin | None:
        """What made a value that is not finite; where that wrote through a view, by the storage."""
        known = self._made.get(id(tensor))
        if known is not None or not tensor.is_floating_point() or is_finite(tensor):
            return known
        return self._stored.get(tensor.untyped_storage().data_ptr())

    def _place(self, name: str, path: str) -> str:
        if self._in_backward:
            return "grad"
        if path:
            return "logits"
        return PLACES.get(name.strip("_"), "objective")


def measured(name: str, place: str, tensor: Any, loss_mask: Any = None) -> dict[str, Any]:
    """One entry of the trail of `numerics.json`."""
    import torch

    values = tensor.detach()
    bad = ~values.isfinite()
    masked = 0
    if loss_mask is not None and values.dim() >= 2 and values.shape[:2] == loss_mask.shape:
        off = (loss_mask == 0).reshape(*loss_mask.shape, *[1] * (values.dim() - 2))
        masked = int((bad & off.to(bad.device)).sum())
    sound = torch.where(bad, torch.zeros_like(values), values).abs()
    return {
        "name": name,
        "place": place,
        "dtype": str(values.dtype).rpartition(".")[2],
        "n": values.numel(),
        "n_nonfinite": int(bad.sum()),
        "n_nonfinite_masked": masked,
        "largest": float(sound.max()) if values.numel() else None,
    }


def is_finite(tensor: Any) -> bool:
    """A finite sum has finite terms; only where it is none are these looked at one by one."""
    import torch

    if not tensor.is_floating_point():
        return True
    values = tensor.detach()
    wide = values.dtype if values.dtype == torch.float64 else torch.float32
    return math.isfinite(float(values.sum(dtype=wide))) or bool(values.isfinite().all())


def _caller() -> str:
    """File and line outside of torch that is running."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/" not in file and not file.startswith(_HERE):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _mode(watch: Watch) -> Any:
    """The dispatch mode that shows every operation to `watch`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            inputs = [t for t in _flat((args, kwargs or {})) if isinstance(t, torch.Tensor)]
            outputs = [t for t in _flat(result) if isinstance(t, torch.Tensor)]
            watch.saw(func, inputs, outputs)
            return result

    return Mode()


def _flat(values: Any) -> list[Any]:
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return [leaf for value in values for leaf in _flat(value)]
    return [values]
