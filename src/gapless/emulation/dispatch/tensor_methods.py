"""Handlers for tensor methods: moving, reading, pinning and copying."""

from __future__ import annotations

from typing import Any

import torch

from gapless import trees
from gapless.emulation.core.transfers import count_copy, move
from gapless.emulation.dispatch.functions import FunctionMode, Handler, as_device, handles
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, PINNED
from gapless.model.event import METRIC_RESULT
from gapless.torch_internals import DispatchKey, key_is_excluded, pad_packed_sequence

Tensor = torch.Tensor
_Base: Any = torch.Tensor

# -- moving ----------------------------------------------------------------------------------------


@handles(Tensor.to)
def _to(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    options = dict(kwargs)
    device: Any = options.pop("device", None)
    dtype: Any = options.pop("dtype", None)
    other = options.pop("other", None)
    if rest and isinstance(rest[0], Tensor):
        other = rest.pop(0)
    elif rest and isinstance(rest[0], torch.dtype):
        dtype = rest.pop(0)
    elif rest:
        device = rest.pop(0)
        if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
            dtype = rest.pop(0)
    if other is not None:
        device, dtype = other.device, other.dtype
    for name in ("non_blocking", "copy", "memory_format"):
        if rest:
            options[name] = rest.pop(0)
    if device is None:
        return func(tensor, dtype=dtype, **options) if dtype is not None else func(*args, **kwargs)
    device = as_device(device)
    if device.type not in ("cuda", "cpu") or tensor.is_meta:
        if device.type != "meta" and not tensor.is_meta:
            return func(*args, **kwargs)
        return _through_meta(mode, func, tensor, device, dtype, options)
    options["memory_format"] = options.get("memory_format") or torch.preserve_format
    return move(mode.core, tensor, mode.core.index_of(device), dtype=dtype, **options)


def _through_meta(
    mode: FunctionMode, func: Any, tensor: Tensor, device: torch.device, dtype: Any, options: dict[str, Any]
) -> Any:
    """Move to or from meta by ATen itself, with the CPU for the device, and place the result."""
    index = mode.core.index_of(device)
    real = torch.device("cpu") if index >= 0 else device
    out = func(tensor, device=real, dtype=dtype, **options)
    return mode.core.place(out, index) if index >= 0 else out


@handles(Tensor.type_as)
def _type_as(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Convert to the dtype and the device of the other tensor."""
    tensor, other = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if not isinstance(other, Tensor) or tensor.is_meta or other.is_meta:
        return func(*args, **kwargs)
    target = mode.core.device_of(other)
    return move(mode.core, tensor, target, dtype=other.dtype, call="Tensor.type_as")


@handles(Tensor.cuda)
def _cuda(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    device = rest[0] if rest else kwargs.get("device")
    non_blocking = rest[1] if len(rest) > 1 else kwargs.get("non_blocking", False)
    wanted = torch.device("cuda") if device is None else as_device(device)
    if wanted.type != "cuda":
        raise RuntimeError(f"Invalid device, must be cuda device but got {wanted}")
    memory_format = kwargs.get("memory_format") or torch.preserve_format
    return move(
        mode.core, tensor, mode.core.index_of(wanted), non_blocking=non_blocking, memory_format=memory_format
    )


@handles(Tensor.cpu)
def _cpu(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    memory_format = kwargs.get("memory_format") or torch.preserve_format
    return move(mode.core, args[0], HOST, memory_format=memory_format, call="Tensor.cpu")


@handles(Tensor.type)
def _type(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    wanted = rest[0] if rest else kwargs.get("dtype")
    index = mode.core.device_of(tensor)
    if wanted is None:
        name: str = func(tensor)
        return name.replace("torch.", "torch.cuda.", 1) if index >= 0 else name
    if isinstance(wanted, torch.dtype):
        return tensor.to(dtype=wanted)
    name = wanted if isinstance(wanted, str) else _type_name(wanted)
    target = max(index, 0) if ".cuda." in name else HOST
    if ".cuda." in name and index < 0:
        target = local.device
    dtype = _dtype_of(name)
    non_blocking = rest[1] if len(rest) > 1 else kwargs.get("non_blocking", False)
    return move(mode.core, tensor, target, dtype=dtype, non_blocking=non_blocking, call="Tensor.type")


def _type_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _dtype_of(name: str) -> torch.dtype:
    """The dtype of a legacy type name such as ``torch.cuda.FloatTensor``."""
    legacy = name.rsplit(".", 1)[-1]
    kind = getattr(torch, legacy, None)
    dtype = getattr(kind, "dtype", None)
    if legacy == "Tensor":
        return torch.get_default_dtype()
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"invalid type: '{name}'")
    return dtype


@handles(Tensor.get_device, torch.get_device)
def _get_device(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.core.device_of(args[0])


@handles(torch.tensor_split, Tensor.tensor_split)
def _tensor_split(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Refuse device indices as torch does; its C++ would see the storage's own device, the CPU."""
    where: Any = args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")
    if mode.on_device(where):
        raise RuntimeError(
            f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {where.device}"
        )
    return func(*args, **kwargs)


@handles(pad_packed_sequence)
def _pad_packed_sequence(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Unpack, and place the lengths on the host, where they are by contract."""
    padded, lengths = func(*args, **kwargs)
    return padded, mode.core.place(lengths, HOST)


@handles(Tensor.record_stream)
def _record_stream(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode.core.races.record_stream(*args, *kwargs.values())


# -- pinning ---------------------------------------------------------------------------------------


@handles(Tensor.pin_memory)
def _pin_memory(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    state = mode.core.placement.state_of(tensor)
    if state == PINNED:
        return tensor
    if state >= 0:
        kind = tensor.type().replace("torch.", "torch.cuda.", 1)
        raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")
    with torch.no_grad():
        return mode.core.place(tensor.clone(), PINNED)


@handles(Tensor.is_pinned)
def _is_pinned(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.core.is_pinned(args[0])


@handles(Tensor.share_memory_)
def _share_memory(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if mode.on_device(args[0]) else func(*args, **kwargs)  # device memory is always shared


@handles(Tensor.is_shared)
def _is_shared(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return True if mode.on_device(args[0]) else func(*args, **kwargs)


# -- reading ---------------------------------------------------------------------------------------


def _make_read_handler(name: str) -> Handler:
    """Make a handler that records reads under the Python name `name`, not the operator's.

    ``torch.FloatTensor([a, b])`` reads below all modes, so it is counted here.
    """

    def handler(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = local.call
        local.call = before or name
        try:
            out = func(*args, **kwargs)
            if key_is_excluded(DispatchKey.Python) and mode.on_device(args[0]):
                mode.core.wait("aten::_local_scalar_dense", "read", call=name, about=args)
            return out
        finally:
            local.call = before

    return handler


for _method in (
    "item", "__bool__", "__float__", "__int__", "__index__", "__complex__", "__format__", "__contains__",
    "is_nonzero",
):  # fmt: skip
    handles(getattr(Tensor, _method))(_make_read_handler(f"Tensor.{_method}"))
handles(torch.is_nonzero)(_make_read_handler("torch.is_nonzero"))


def _read_at_once(name: str) -> Handler:
    """Make a handler that counts one read of the whole tensor, and none of the operators inside."""

    def handler(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        on_device = mode.on_device(args[0])
        mode.core.origins.note_leaves(args[0], on_device, for_list=True)
        if on_device:
            detail = METRIC_RESULT if trees.is_result(args[0]) else ""
            mode.core.wait(name, "read", call=name, detail=detail, about=args)
        else:
            mode.core.races.check_host_access(args[0], False, name)
        local.quiet += 1
        try:
            return func(*args, **kwargs)
        finally:
            local.quiet -= 1

    return handler


handles(Tensor.tolist)(_read_at_once("Tensor.tolist"))
handles(Tensor.__repr__)(_read_at_once("Tensor.__repr__"))


@handles(Tensor.numpy)
def _numpy(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    state = mode.core.placement.state_of(tensor)
    index = max(state, HOST)
    mode.core.origins.note_leaves(tensor, index >= 0)
    if index < 0:
        array = func(*args, **kwargs)
        return mode.core.races.watch_array(tensor, array) if state == PINNED else array
    if not kwargs.get("force", False):
        raise TypeError(
            f"can't convert cuda:{index} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
            "host memory first."
        )
    count_copy(
        mode.core, index, HOST, non_blocking=False, nbytes=tensor.nbytes, call="Tensor.numpy", fresh=True
    )
    return func(tensor, force=True).copy()


@handles(Tensor.unbind, torch.unbind)
def _unbind(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Note loops over a tensor, whose ``__iter__`` calls this."""
    if args and mode.on_device(args[0]):
        mode.core.origins.note_iteration(args[0])
    return func(*args, **kwargs)


# -- what ATen does differently below a mode -----------------------------------------------------------


@handles(torch.linalg.matrix_rank)
def _matrix_rank(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Write the rank into ``out=``, which ATen does not do below a dispatch mode."""
    out = kwargs.get("out")
    if out is None:
        return func(*args, **kwargs)
    options = {name: value for name, value in kwargs.items() if name != "out"}
    ranks = func(*args, **options)
    return (out if out.shape == ranks.shape else out.resize_(ranks.shape)).copy_(ranks)


@handles(torch.ctc_loss)
def _ctc_loss(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Convert lengths on the host to lists, as ATen does without a mode."""

    def to_list(value: Any) -> Any:
        on_host = isinstance(value, Tensor) and not mode.on_device(value) and not value.is_floating_point()
        return value.tolist() if on_host and value.dim() == 1 else value

    lengths = [to_list(value) for value in args[2:4]]
    names = {
        name: to_list(value) for name, value in kwargs.items() if name in ("input_lengths", "target_lengths")
    }
    if all(isinstance(value, (list, tuple)) for value in (*lengths, *names.values())):
        args, kwargs = (*args[:2], *lengths, *args[4:]), {**kwargs, **names}
    return func(*args, **kwargs)


@handles(_Base.grad.__set__)
def _set_gradient(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, gradient = args
    if isinstance(gradient, Tensor) and gradient.device != tensor.device and not gradient.is_meta:
        raise RuntimeError(
            f"attempting to assign a gradient with device type '{gradient.device.type}' to a tensor with "
            f"device type '{tensor.device.type}'. Please ensure that the gradient and the tensor are on the "
            "same device"
        )
    return func(*args, **kwargs)
