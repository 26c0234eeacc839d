"""Refuse operators on tensors of several devices where CUDA does, in its words.

Raises only where it is certain: operators with a generated check (`device_checks.tsv`), element-wise
operators, and the few below with messages of their own. Zero-dimensional host tensors become kernel arguments
and are accepted.
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
_PlacedArguments = list[tuple[str, Tensor, str]]

_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "where", "lerp", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binomial",
        "floor_divide", "floor_divide_", "index_fill_",
    )
)  # fmt: skip
"""Operators that iterate over all their tensors at once without being tagged so."""


@cache
def _generated_checks() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Read the generated checks: ``operator.overload → (wrapper, checked arguments)``."""
    text = resources.files("gapless.emulation.placement").joinpath("device_checks.tsv").read_text()
    rows = (line.split("\t") for line in text.splitlines()[2:])
    return {f"aten::{name}": (method, tuple(arguments.split(","))) for name, method, arguments in rows}


def accepts_mixed(func: Any) -> bool:
    """Whether no check against host tensors beside device tensors is known for the overload `func`."""
    return _checker(func) is None


def is_strict(func: Any) -> bool:
    """Whether the overload `func` has a generated check, which rejects 0-dim host tensors too."""
    return _SPECIAL_CHECKS.get(func._schema.name) is None and _overload_name(func) in _generated_checks()


def _checker(func: Any) -> Callable[[Any, _PlacedArguments], str | None] | None:
    """Return the function that checks the devices of the overload's arguments; None if none is known."""
    name = func._schema.name
    special = _SPECIAL_CHECKS.get(name)
    if special is not None:
        return special
    if _overload_name(func) in _generated_checks():
        return _generated_message
    return _elementwise_message if name in _ELEMENTWISE or _is_pointwise(func) else None


def _is_pointwise(func: Any) -> bool:
    """Whether `func`, or its out-of-place variant, is tagged as element-wise."""
    if torch.Tag.pointwise in func.tags:
        return True
    namespace, name = func._schema.name.split("::", 1)
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None) if name.endswith("_") else None
    overload = getattr(packet, func._schema.overload_name or "default", None)
    return overload is not None and torch.Tag.pointwise in overload.tags


def _overload_name(func: Any) -> str:
    overload = func._schema.overload_name
    return f"{func._schema.name}.{overload}" if overload else str(func._schema.name)


def check(func: Any, args: Any, kwargs: dict[str, Any], placement: Placement) -> None:
    """Raise as CUDA does if the arguments of `func` are on several devices.

    Raises:
        RuntimeError: with the message of the operator's own check.
    """
    checker = _checker(func)
    if checker is None:
        return
    words = checker(func, list(_placed_arguments(func, args, kwargs, placement, is_strict(func))))
    if words is not None:
        raise RuntimeError(words)


def _placed_arguments(
    func: Any, args: Any, kwargs: dict[str, Any], placement: Placement, strict: bool
) -> Iterator[tuple[str, Tensor, str]]:
    """Yield name, tensor and device of each argument whose device matters."""
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


def _generated_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error of an operator with a generated check; None if the devices agree."""
    method, checked = _generated_checks()[_overload_name(func)]
    order = {name: position for position, name in enumerate(checked)}
    relevant = sorted((entry for entry in tensors if entry[0] in order), key=lambda entry: order[entry[0]])
    for name, _, device in relevant[1:]:
        if device != relevant[0][2]:
            return _mismatch_message(name, device, relevant[0][2], method)
    return None


def _mismatch_message(name: str, device: str, first: str, method: str) -> str:
    return (
        f"Expected all tensors to be on the same device, but got {name} is on {device}, different from other "
        f"tensors on {first} (when checking argument in method {method})"
    )


def _elementwise_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error of an element-wise operator; None if the devices agree."""
    devices = [device for _, _, device in tensors]
    common = next((device for device in devices if device != "cpu"), None)
    other = next((device for device in devices if device != common), None)
    if common is None or other is None:
        return None
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{common} and {other}!"
    )


def _embedding_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error if an embedding's weight and indices are on two devices, in `index_select`'s words."""
    devices = {name: device for name, _, device in tensors}
    weight, index = devices.get("weight"), devices.get("indices")
    if weight is None or index is None or weight == index:
        return None
    return _mismatch_message("index", index, weight, "wrapper_CUDA__index_select")


def _convolution_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error of a convolution, which names the tensor types."""
    named = {name: (tensor, device) for name, tensor, device in tensors}
    if "input" not in named:
        return None
    image, device = named["input"]
    for name in ("weight", "bias"):
        if name in named and named[name][1] != device:
            left, right = _type_name(image, device), _type_name(*named[name])
            if left == right:
                return _elementwise_message(func, tensors)
            rest = " or input should be a MKLDNN tensor and weight is a dense tensor"
            on_host = name == "weight" and not device.startswith("cuda") and image.dtype is torch.float32
            return (
                f"Input type ({left}) and {name} type ({right}) should be the same{rest if on_host else ''}"
            )
    return None


def _type_name(tensor: Tensor, device: str) -> str:
    """Return the type that torch names in errors, ``torch.cuda.FloatTensor``."""
    with DisableTorchFunction():
        name = str(TensorBase.type(tensor))
    return (
        name.replace("torch.", "torch.cuda.", 1)
        if device.startswith("cuda") and ".cuda." not in name
        else name
    )


def _index_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error for device indices into a host tensor; host indices are accepted."""
    devices = {name: device for name, _, device in reversed(tensors)}
    own = devices.get("self")
    if own == "cpu" and any(name == "indices" and device != own for name, _, device in tensors):
        return "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
    return None


def _index_put_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error for values on another device than the tensor; indices may be on the host."""
    return _elementwise_message(func, [entry for entry in tensors if entry[0] in ("self", "values")])


def _recurrent_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error of a recurrent layer whose parameters or state are elsewhere than its input."""
    devices = {name: device for name, _, device in reversed(tensors)}
    input_device = devices.get("input")
    for name, device in devices.items():
        if input_device is not None and name in ("params", "hx") and device != input_device:
            kind = "parameter" if name == "params" else "hidden"
            return (
                f"Input and {kind} tensors are not at the same device, found input tensor at {input_device} "
                f"and {kind} tensor at {device}"
            )
    return None


def _one_layer_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error of a layer of the CPU's LSTM, whose weights CUDA calls parameters."""

    def cuda_name(name: str) -> str:
        return "params" if name.startswith("weight") else "hx" if name == "cx" else name.rstrip("_")

    return _recurrent_message(func, [(cuda_name(name), tensor, device) for name, tensor, device in tensors])


def _stack_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error of concatenation, which stacking is."""
    first = tensors[0][2] if tensors else ""
    other = next((device for _, _, device in tensors if device != first), None)
    return None if other is None else _mismatch_message("tensors", other, first, "wrapper_CUDA_cat")


def _ctc_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error of the CTC loss; lengths may be anywhere, as CUDA would take host lists."""
    if _overload_name(func) not in _generated_checks():
        return None
    return _generated_message(func, [entry for entry in tensors if not entry[0].endswith("_lengths")])


def _block_diag_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error of `block_diag` on several devices."""
    for number, (_, _, device) in enumerate(tensors):
        if device != tensors[0][2]:
            return (
                "torch.block_diag: input tensors must all be on the same device. Input 0 is on device "
                f"{tensors[0][2]} and input {number} is on device {device}"
            )
    return None


def _segments_message(func: Any, tensors: _PlacedArguments) -> str | None:
    """Return the error of `segment_reduce` whose lengths or offsets are elsewhere than its data."""
    devices = {name: device for name, _, device in tensors}
    for name in ("lengths", "offsets"):
        if name in devices and devices[name] != devices.get("data"):
            condition = f"data.get_device() == {name}_value.get_device()"
            return (
                f"Expected {condition} to be true, but got false.  (Could this error message be improved?  "
                "If so, please report an enhancement request to PyTorch.)"
            )
    return None


_SPECIAL_CHECKS: dict[str, Callable[[Any, _PlacedArguments], str | None]] = {
    "aten::_ctc_loss": _ctc_message,
    "aten::_ctc_loss_backward": _ctc_message,
    "aten::embedding": _embedding_message,
    "aten::block_diag": _block_diag_message,
    "aten::convolution": _convolution_message,
    "aten::index": _index_message,
    "aten::_cudnn_rnn": _one_layer_message,
    "aten::mkldnn_rnn_layer": _one_layer_message,
    "aten::segment_reduce": _segments_message,
    "aten::stack": _stack_message,
    "aten::_unsafe_index": _index_message,
    "aten::index_put": _index_put_message,
    "aten::index_put_": _index_put_message,
    "aten::_index_put_impl_": _index_put_message,
    "aten::_unsafe_index_put": _index_put_message,
    "aten::lstm": _recurrent_message,
    "aten::gru": _recurrent_message,
    "aten::rnn_tanh": _recurrent_message,
    "aten::rnn_relu": _recurrent_message,
}
