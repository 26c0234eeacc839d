"""The bodies of CUDA's autocast kernels, one per policy, with devices looked up in the placement table."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gapless.emulation.dispatch import autocast_ops as ops
from gapless.torch_internals import (
    VERSION,
    DisableTorchDispatch,
    DisableTorchFunction,
    DispatchKey,
    cudnn_enabled,
    exclude_key,
    key_is_excluded,
)

DeviceOf = Callable[[torch.Tensor], int]
Kernel = Callable[..., Any]

CUDA = DispatchKey.AutocastCUDA
CPU = DispatchKey.AutocastCPU
SHIELD: Any = vars(DispatchKey)["AutocastIPU"]
"""A key above the CPU's that no tensor carries; its kernels keep CPU autocast off device tensors."""
_CASTABLE = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype is not torch.float64
)
_TENSOR, _TENSORS, _OTHER = 1, 2, 0
_KINDS = {"Tensor": _TENSOR, "Optional[Tensor]": _TENSOR, "List[Tensor]": _TENSORS}


class Caster:
    """Casts arguments as CUDA's autocast does, including its weight cache."""

    def __init__(self, device_of: DeviceOf) -> None:
        self.device_of = device_of
        self._cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._keeps_history = _cache_keeps_history()

    def clear(self) -> None:
        """Clear the weight cache, as leaving the outermost autocast does."""
        self._cache.clear()

    def eligible(self, value: Any) -> bool:
        """Whether `value` is a floating-point tensor on the device, other than float64."""
        return isinstance(value, torch.Tensor) and value.dtype in _CASTABLE and self.device_of(value) >= 0

    def on_device(self, values: Iterable[Any]) -> bool:
        """Whether any tensor in `values`, including nested lists, is on the device."""
        for value in values:
            if isinstance(value, torch.Tensor):
                if self.device_of(value) >= 0:
                    return True
            elif isinstance(value, (list, tuple)) and value and self.on_device(value):
                return True
        return False

    def cast(self, tensor: torch.Tensor, to: torch.dtype, low: torch.dtype | None) -> torch.Tensor:
        """Cast `tensor` to dtype `to` if eligible; cache casts of weights to the autocast dtype `low`."""
        dtype = tensor.dtype
        if dtype is to or dtype not in _CASTABLE or self.device_of(tensor) < 0:
            return tensor
        if (
            to is not low
            or dtype is not torch.float32
            or not tensor.requires_grad
            or not tensor.is_leaf
            or tensor._is_view()
            or not torch.is_autocast_cache_enabled()
            or (self._keeps_history and torch.is_inference_mode_enabled())
        ):
            return tensor.to(to)
        cached = self._cache.get(id(tensor))
        if cached is not None and cached[0]() is tensor:
            return cached[1]
        if self._keeps_history:
            with torch.enable_grad():
                result = tensor.to(to)
        else:
            result = tensor.to(to)
        self._cache[id(tensor)] = (weakref.ref(tensor), result)
        return result

    def cast_all(self, args: tuple[Any, ...], kinds: tuple[int, ...], to: torch.dtype, low: Any) -> list[Any]:
        """Return `args` with every eligible tensor cast; `kinds` says which positions hold tensors."""
        cast = self.cast
        out = list(args)
        for position, (kind, value) in enumerate(zip(kinds, args, strict=False)):
            if kind == _TENSOR:
                if value is not None:
                    out[position] = cast(value, to, low)
            elif kind == _TENSORS:
                out[position] = [cast(item, to, low) for item in value]
        return out

    def widest(self, args: tuple[Any, ...], kinds: tuple[int, ...], low: torch.dtype) -> torch.dtype:
        """The dtype the `PROMOTE` policy casts to.

        Raises:
            RuntimeError: an argument is neither float32 nor of the autocast dtype (torch's own text).
        """
        widest = low
        for kind, value in zip(kinds, args, strict=False):
            if kind == _OTHER or value is None:
                continue
            for tensor in value if kind == _TENSORS else (value,):
                if not self.eligible(tensor):
                    continue
                if widest is torch.float32 or tensor.dtype is torch.float32:
                    widest = torch.float32
                elif tensor.dtype is not low or widest is not low:
                    raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
        return widest


def _cache_keeps_history() -> bool:
    """Whether a cast cached under `no_grad` still propagates gradients in this torch version.

    Until about 2.10 such a cached cast detached the weight from its gradient. All devices share the cache, so
    CPU autocast is tested.
    """
    weight = torch.zeros(1, 1, requires_grad=True)
    with DisableTorchFunction(), DisableTorchDispatch(), torch.autocast("cpu"):
        with torch.no_grad():
            weight.mm(weight)
        with torch.enable_grad():
            return bool(weight.mm(weight).requires_grad)


# -- one kernel per operator ---------------------------------------------------------------------------


def below_autocast(body: Kernel, caster: Caster) -> Kernel:
    """Wrap `body` to run with autocast off, as CUDA's kernels do.

    Function modes are off, too, as they would not see C++ code. With device tensors among the arguments CPU
    autocast is off as well, because CUDA tensors do not carry its key.
    """

    def kernel(*args: Any, **kwargs: Any) -> Any:
        cpu_is_on = not key_is_excluded(CPU)
        exclude_key(CUDA, True)
        try:
            with DisableTorchFunction():
                if not cpu_is_on or not caster.on_device(args):
                    return body(*args, **kwargs)
                exclude_key(CPU, True)
                try:
                    return body(*args, **kwargs)
                finally:
                    exclude_key(CPU, False)
        finally:
            exclude_key(CUDA, False)

    return kernel


def without_cpu_autocast(caster: Caster, call: Kernel) -> Kernel:
    """Wrap the operator `call` to run without CPU autocast if an argument is on the device."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        exclude_key(SHIELD, True)
        try:
            with DisableTorchFunction():
                if not caster.on_device(args):
                    return call(*args, **kwargs)
                exclude_key(CPU, True)
                try:
                    return call(*args, **kwargs)
                finally:
                    exclude_key(CPU, False)
        finally:
            exclude_key(SHIELD, False)

    return kernel


def body_of(caster: Caster, policy: str, name: str, namespace: str = "aten") -> Kernel:
    """Return the function that runs the operator `name` under `policy`, to be called with autocast off."""
    operator = overload(namespace, name)
    call = operator._op
    arguments = operator._schema.arguments
    kinds = tuple(_KINDS.get(str(argument.type), _OTHER) for argument in arguments)
    cast_all = caster.cast_all

    def lower_precision(*args: Any, **kwargs: Any) -> Any:
        low = torch.get_autocast_dtype("cuda")
        return call(*cast_all(args, kinds, low, low), **kwargs)

    def fp32(*args: Any, **kwargs: Any) -> Any:
        return call(*cast_all(args, kinds, torch.float32, None), **kwargs)

    def promote(*args: Any, **kwargs: Any) -> Any:
        low = torch.get_autocast_dtype("cuda")
        return call(*cast_all(args, kinds, caster.widest(args, kinds, low), None), **kwargs)

    def fp32_and_back(*args: Any, **kwargs: Any) -> Any:
        out = fp32(*args, **kwargs)
        if isinstance(out, tuple):
            return tuple(item.to(args[0].dtype) for item in out)  # indices as well, as torchvision does
        return out.to(args[0].dtype)

    def cudnn_rnn(*args: Any, **kwargs: Any) -> Any:
        if not caster.eligible(args[0]):
            return call(*args, **kwargs)
        return call(*cast_all(args, kinds, rnn_dtype(args[0]), None), **kwargs)

    def raise_if_on_device(*args: Any, **kwargs: Any) -> Any:
        if caster.on_device(args):
            raise RuntimeError(ops.BANNED_MESSAGE)
        return call(*args, **kwargs)

    if policy == ops.FP32_SET_DTYPE:
        return _set_dtype(caster, call, arguments)
    if policy == ops.FP32_APPEND_DTYPE:
        return _append_dtype(caster, call, overload(namespace, ops.WITH_DTYPE[name])._op, arguments)
    bodies: dict[str, Kernel] = {
        ops.LOWER_PRECISION: lower_precision,
        ops.FP32: fp32,
        ops.PROMOTE: promote,
        ops.FP32_AND_BACK: fp32_and_back,
        ops.CUDNN_RNN: cudnn_rnn,
        ops.BANNED: raise_if_on_device,
    }
    return bodies[policy]


def _set_dtype(caster: Caster, call: Kernel, arguments: Any) -> Kernel:
    """Body of the `FP32_SET_DTYPE` policy; `dtype` is positional in some operators, a keyword in others."""
    position = next(index for index, argument in enumerate(arguments) if argument.name == "dtype")
    keyword = bool(arguments[position].kwarg_only)

    def body(*args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype") if keyword or len(args) <= position else args[position]
        if dtype is None and caster.eligible(args[0]):
            args = args if keyword else args[:position]
            kwargs["dtype"] = torch.float32
        return call(*args, **kwargs)

    return body


def _append_dtype(caster: Caster, call: Kernel, call_with_dtype: Kernel, arguments: Any) -> Kernel:
    """Body of the `FP32_APPEND_DTYPE` policy (``norm``)."""
    # The overload with a dtype has no defaults, and the dispatcher omits arguments that equal the defaults.
    defaults = tuple(argument.default_value for argument in arguments)

    def body(*args: Any, **kwargs: Any) -> Any:
        data = args[0]
        if caster.device_of(data) < 0:
            return call(*args, **kwargs)
        dtype = torch.float32 if caster.eligible(data) else data.dtype
        return call_with_dtype(*args, *defaults[len(args) :], **kwargs, dtype=dtype)

    return body


def rnn_dtype(data: torch.Tensor) -> torch.dtype:
    """The dtype a recurrent layer computes in: float16 if cuDNN runs it, else the autocast dtype."""
    cudnn = cudnn_enabled()
    if cudnn and data.dtype is torch.bfloat16:
        # cuDNN accepts bfloat16 input since torch 2.10; before, such layers ran without cuDNN.
        cudnn = VERSION >= (2, 10)
    return torch.float16 if cudnn else torch.get_autocast_dtype("cuda")


def overload(namespace: str, name: str) -> Any:
    """Look up the operator `name` or ``name.overload``."""
    packet, _, which = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which or "default")
