"""Mixed devices: where CUDA refuses them, and in which words.

Only what is certain raises: operators with a generated check (`device_checks.tsv`), element-wise operators,
and the few below with words of their own. Zero-dimensional host tensors become kernel arguments and are
welcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any

import torch

from gapless.emulation.placement.placement import Placement
from gapless.emulation.support.places import ORPHAN
from gapless.torch_internals import DisableTorchFunction, TensorBase

Tensor = torch.Tensor
_Named = list[tuple[str, Tensor, str]]

_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "where", "lerp", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binomial",
        "floor_divide", "floor_divide_", "index_fill_",
    )
)  # fmt: skip
"""Operators that iterate over all their tensors at once without being marked so."""


@cache
def _generated() -> dict[str, tuple[str, tuple[str, ...]]]:
    """``operator.overload → (wrapper, checked arguments)``."""
    text = resources.files("gapless.emulation.placement").joinpath("device_checks.tsv").read_text()
    rows = (line.split("\t") for line in text.splitlines()[2:])
    return {f"aten::{name}": (method, tuple(arguments.split(","))) for name, method, arguments in rows}


def accepts_mixed(func: Any) -> bool:
    """Whether nothing is known against host tensors beside device tensors in the overload `func`."""
    return _checker(func) is None


def is_strict(func: Any) -> bool:
    """Whether the overload `func` has a generated check, which 0-dim tensors do not pass either."""
    return _SPECIAL.get(func._schema.name) is None and _key(func) in _generated()


def _checker(func: Any) -> Callable[[Any, _Named], str | None] | None:
    name = func._schema.name
    special = _SPECIAL.get(name)
    if special is not None:
        return special
    if _key(func) in _generated():
        return _generated_words
    return _elementwise_words if name in _ELEMENTWISE or _is_pointwise(func) else None


def _is_pointwise(func: Any) -> bool:
    """Whether `func`, or what it does in place, is marked as element-wise."""
    if torch.Tag.pointwise in func.tags:
        return True
    namespace, name = func._schema.name.split("::", 1)
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None) if name.endswith("_") else None
    overload = getattr(packet, func._schema.overload_name or "default", None)
    return overload is not None and torch.Tag.pointwise in overload.tags


def _key(func: Any) -> str:
    overload = func._schema.overload_name
    return f"{func._schema.name}.{overload}" if overload else str(func._schema.name)


def check(func: Any, args: Any, kwargs: dict[str, Any], placement: Placement) -> None:
    """Raise as CUDA does when the arguments of `func` lie on several devices.

    Raises:
        RuntimeError: with the words of the operator's own check.
    """
    checker = _checker(func)
    if checker is None:
        return
    words = checker(func, list(_named_tensors(func, args, kwargs, placement, is_strict(func))))
    if words is not None:
        raise RuntimeError(words)


def _named_tensors(
    func: Any, args: Any, kwargs: dict[str, Any], placement: Placement, strict: bool
) -> Iterator[tuple[str, Tensor, str]]:
    names = [argument.name for argument in func._schema.arguments]
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(item, Tensor):
                continue
            state = placement.state_of(item)
            device = f"cuda:{state}" if state >= 0 else str(item.device)
            exempt = state < 0 and item.dim() == 0 and not strict
            if state != ORPHAN and not exempt and not device.startswith("meta"):
                yield name, item, device


def _generated_words(func: Any, tensors: _Named) -> str | None:
    method, checked = _generated()[_key(func)]
    order = {name: position for position, name in enumerate(checked)}
    relevant = sorted((one for one in tensors if one[0] in order), key=lambda one: order[one[0]])
    for name, _, device in relevant[1:]:
        if device != relevant[0][2]:
            return _got(name, device, relevant[0][2], method)
    return None


def _got(name: str, device: str, first: str, method: str) -> str:
    return (
        f"Expected all tensors to be on the same device, but got {name} is on {device}, different from other "
        f"tensors on {first} (when checking argument in method {method})"
    )


def _elementwise_words(func: Any, tensors: _Named) -> str | None:
    devices = [device for _, _, device in tensors]
    common = next((device for device in devices if device != "cpu"), None)
    other = next((device for device in devices if device != common), None)
    if common is None or other is None:
        return None
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{common} and {other}!"
    )


def _embedding_words(func: Any, tensors: _Named) -> str | None:
    """An embedding is an `index_select` of its weight."""
    named = {name: device for name, _, device in tensors}
    weight, index = named.get("weight"), named.get("indices")
    if weight is None or index is None or weight == index:
        return None
    return _got("index", index, weight, "wrapper_CUDA__index_select")


def _convolution_words(func: Any, tensors: _Named) -> str | None:
    named = {name: (tensor, device) for name, tensor, device in tensors}
    if "input" not in named:
        return None
    given, device = named["input"]
    for name in ("weight", "bias"):
        if name in named and named[name][1] != device:
            left, right = _type(given, device), _type(*named[name])
            if left == right:
                return _elementwise_words(func, tensors)
            rest = " or input should be a MKLDNN tensor and weight is a dense tensor"
            on_host = name == "weight" and not device.startswith("cuda") and given.dtype is torch.float32
            return (
                f"Input type ({left}) and {name} type ({right}) should be the same{rest if on_host else ''}"
            )
    return None


def _type(tensor: Tensor, device: str) -> str:
    with DisableTorchFunction():
        name = str(TensorBase.type(tensor))
    return (
        name.replace("torch.", "torch.cuda.", 1)
        if device.startswith("cuda") and ".cuda." not in name
        else name
    )


def _index_words(func: Any, tensors: _Named) -> str | None:
    """Indices may come from the host; device indices into a host tensor may not."""
    named = {name: device for name, _, device in reversed(tensors)}
    own = named.get("self")
    if own == "cpu" and any(name == "indices" and device != own for name, _, device in tensors):
        return "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
    return None


def _index_put_words(func: Any, tensors: _Named) -> str | None:
    """Values have to be where the tensor is; indices may come from the host."""
    return _elementwise_words(func, [one for one in tensors if one[0] in ("self", "values")])


def _recurrent_words(func: Any, tensors: _Named) -> str | None:
    named = {name: device for name, _, device in reversed(tensors)}
    given = named.get("input")
    for name, device in named.items():
        if given is not None and name in ("params", "hx") and device != given:
            kind = "parameter" if name == "params" else "hidden"
            return (
                f"Input and {kind} tensors are not at the same device, found input tensor at {given} and "
                f"{kind} tensor at {device}"
            )
    return None


def _one_layer_words(func: Any, tensors: _Named) -> str | None:
    """What an LSTM runs on the CPU, layer by layer, has weights where CUDA's has parameters."""
    named = [
        ("params" if name.startswith("weight") else "hx" if name == "cx" else name.rstrip("_"), one, at)
        for name, one, at in tensors
    ]
    return _recurrent_words(func, named)


def _stack_words(func: Any, tensors: _Named) -> str | None:
    """Stacking is concatenation."""
    first = tensors[0][2] if tensors else ""
    other = next((device for _, _, device in tensors if device != first), None)
    return None if other is None else _got("tensors", other, first, "wrapper_CUDA_cat")


def _ctc_words(func: Any, tensors: _Named) -> str | None:
    """Lengths may be anywhere: a mode makes tensors of what CUDA would take as lists from the host."""
    if _key(func) not in _generated():
        return None
    return _generated_words(func, [one for one in tensors if not one[0].endswith("_lengths")])


def _block_diag_words(func: Any, tensors: _Named) -> str | None:
    for number, (_, _, device) in enumerate(tensors):
        if device != tensors[0][2]:
            return (
                "torch.block_diag: input tensors must all be on the same device. Input 0 is on device "
                f"{tensors[0][2]} and input {number} is on device {device}"
            )
    return None


def _segments_words(func: Any, tensors: _Named) -> str | None:
    named = {name: device for name, _, device in tensors}
    for name in ("lengths", "offsets"):
        if name in named and named[name] != named.get("data"):
            condition = f"data.get_device() == {name}_value.get_device()"
            return (
                f"Expected {condition} to be true, but got false.  (Could this error message be improved?  "
                "If so, please report an enhancement request to PyTorch.)"
            )
    return None


_SPECIAL: dict[str, Callable[[Any, _Named], str | None]] = {
    "aten::_ctc_loss": _ctc_words,
    "aten::_ctc_loss_backward": _ctc_words,
    "aten::embedding": _embedding_words,
    "aten::block_diag": _block_diag_words,
    "aten::convolution": _convolution_words,
    "aten::index": _index_words,
    "aten::_cudnn_rnn": _one_layer_words,
    "aten::mkldnn_rnn_layer": _one_layer_words,
    "aten::segment_reduce": _segments_words,
    "aten::stack": _stack_words,
    "aten::_unsafe_index": _index_words,
    "aten::index_put": _index_put_words,
    "aten::index_put_": _index_put_words,
    "aten::_index_put_impl_": _index_put_words,
    "aten::_unsafe_index_put": _index_put_words,
    "aten::lstm": _recurrent_words,
    "aten::gru": _recurrent_words,
    "aten::rnn_tanh": _recurrent_words,
    "aten::rnn_relu": _recurrent_words,
}
