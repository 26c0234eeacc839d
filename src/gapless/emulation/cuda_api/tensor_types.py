"""Legacy tensor types such as ``torch.cuda.FloatTensor``."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from gapless.emulation.cuda_api.runtime import Runtime, refusal
from gapless.emulation.support.device import Device
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import TensorBase

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class CudaTensorType(type):
    """The metaclass of ``torch.cuda.FloatTensor``: ``isinstance`` checks a tensor's device and dtype."""

    dtype: torch.dtype
    runtime: Runtime
    is_cuda = True
    is_sparse = False
    layout = torch.strided

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype is cls.dtype
            and instance.layout is torch.strided
            and cls.runtime.device.device_of(instance) >= 0
        )

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """Create an uninitialized tensor of a size, or one with the values of a sequence (the host waits).

        Raises:
            TypeError: `device` is not a CUDA device, or a tensor of another type is given.
        """
        if device is not None and torch.device(device).type != "cuda":
            raise TypeError(
                "legacy constructor expects device type: cuda but device type: "
                f"{torch.device(device).type} was passed"
            )
        index = None if device is None else torch.device(device).index
        return _construct(cls.runtime.device, cls, args, index)

    def __repr__(cls) -> str:
        return f"<class 'torch.cuda.{cls.__name__}'>"


def _construct(device: Device, kind: Any, args: tuple[Any, ...], index: int | None) -> torch.Tensor:
    index = device.current_device() if index is None else index
    if len(args) == 1 and isinstance(args[0], torch.Tensor):
        if not isinstance(args[0], kind):
            raise TypeError(f"expected {kind.__name__} (got {args[0].type()})")
        return args[0].detach()
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        host = torch.tensor(args[0], dtype=kind.dtype, device="cpu")
        nbytes = host.numel() * host.element_size()
        device.wait("aten::_to_copy", "h2d", call=f"torch.cuda.{kind.__name__}", detail="list", nbytes=nbytes)
    else:
        size = args[0] if args and isinstance(args[0], torch.Size) else (args or (0,))
        host = torch.empty(size, dtype=kind.dtype, device="cpu")
    return device.place(host, index)


def legacy_type(value: Any) -> tuple[str, torch.dtype] | None:
    """Device type and dtype of a legacy tensor type or its name; None for anything else."""
    if isinstance(value, CudaTensorType):
        return "cuda", value.dtype
    if not isinstance(value, str) and type(value) is not type(torch.FloatTensor):
        return None
    name = value if isinstance(value, str) else f"{value.__module__}.{value.__name__}"
    prefix, _, kind = name.rpartition(".")
    if kind not in _DTYPES or prefix not in ("torch", "torch.cuda"):
        return None
    return ("cuda" if prefix == "torch.cuda" else "cpu"), _DTYPES[kind]


def _no_storage(cls: type, *_: Any, **__: Any) -> NoReturn:
    name = f"torch.cuda.{cls.__name__}"
    refusal(name, 'Create a tensor, torch.empty(n, device="cuda"), and use its untyped_storage().')()


def install(runtime: Runtime, patches: Patches) -> None:
    """Replace the types of ``torch.cuda``, and make ``torch.set_default_tensor_type`` accept them."""
    for name, dtype in _DTYPES.items():
        kind = CudaTensorType(name, (), {"dtype": dtype, "runtime": runtime, "__module__": "torch.cuda"})
        patches.set(torch.cuda, name, kind)
    patches.set(torch.cuda.FloatStorage.__mro__[1], "__new__", _no_storage)
    original = torch.set_default_tensor_type
    on_device = False

    def set_default_tensor_type(t: Any) -> None:
        """Set the default dtype and device for a CUDA type; pass other types to torch."""
        nonlocal on_device
        named = legacy_type(t)
        if named is not None and named[0] == "cuda":
            torch.set_default_dtype(named[1])
            torch.set_default_device("cuda")
            if "__new__" not in vars(torch.Tensor):
                patches.set(torch.Tensor, "__new__", new)
            on_device = True
            return
        if on_device:
            torch.set_default_device(None)
            on_device = False
        original(t)

    def new(*arguments: Any, **kwargs: Any) -> Any:  # torch.compile refuses a function with named parameters
        """Create ``torch.Tensor([1.0])`` with the default type, which the default device does not affect."""
        (cls, *args), device = arguments, kwargs.get("device")
        if cls is not torch.Tensor or not on_device or device is not None:
            return TensorBase.__new__(cls, *args, **{} if device is None else kwargs)
        kind = next(name for name, dtype in _DTYPES.items() if dtype is torch.get_default_dtype())
        return getattr(torch.cuda, kind)(*args)

    patches.set_everywhere(torch, "set_default_tensor_type", set_default_tensor_type)
