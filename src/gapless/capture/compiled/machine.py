"""A machine for the compiler: tensors claim to be on the GPU while the CPU computes them.

The compiler asks tensors for their device, and traces with fake tensors there. The emulation's modes are
off: the compiler skips frames below a dispatch mode, traces into function modes, and guards on both.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from gapless import trees
from gapless.emulation import cuda_api
from gapless.emulation.compiled import compilers, disabled
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.places import HOST
from gapless.torch_internals import (
    C,
    TensorBase,
    TorchDispatchMode,
    current_stream_in_c,
    path,
    place,
    weak_ref_expired,
)

_CUDA, _META = 1, 14
"""Device numbers in ``c10::DeviceType``."""
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_MAX_DEPTH = 3
"""Nesting of containers searched for tensors; arguments of compiled code are rarely deeper."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_OF_CUDA_BUILDS = ("_cuda_CUDAAllocator_AllocatorState",)
"""Names that the code generator imports if torch claims to be built with CUDA."""
_Base: Any = TensorBase


class Places:
    """Where tensors are: on the GPU if the run placed them there, else on the host.

    Tensors that code between two graphs created are taken to be on the GPU when they enter the next graph.
    """

    def __init__(self, core: EmulationCore, on_gpu: bool) -> None:
        self._where = core.placement.where
        self._put = core.placement.put
        self._hosts: dict[int, Any] = {}
        self.on_gpu = on_gpu
        if on_gpu:
            self.on_host(value for value in _objects() if type(value) in _PLAIN)

    def __call__(self, tensor: Any) -> int:
        """Return the index of the GPU that a tensor is on, or `HOST`."""
        try:
            key = tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError, ValueError):
            return HOST
        index = self._where.get(key)
        if index is not None:
            return index if index >= 0 else HOST
        return HOST

    def place(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        """Place `tensor` on the device `index`; returns it."""
        if index < 0:
            self.on_host((tensor,))
        elif self._where.get(tensor.untyped_storage()._cdata) is None:
            self._put(tensor, index)
        return tensor

    def adopt(self, frame: Any) -> None:
        """Before a frame is compiled: place its tensors on the GPU unless they are known to be on the CPU."""
        if not self.on_gpu:
            return
        for tensor in _find_tensors(list(frame.f_locals.values())):
            if tensor.ndim and _Base.device.__get__(tensor).type == "cpu" and not self.knows(tensor):
                self.place(tensor, 0)

    def knows(self, tensor: Any) -> bool:
        """Whether `tensor` is known to be on the CPU."""
        with suppress(NotImplementedError, RuntimeError, ValueError):
            reference = self._hosts.get(tensor.untyped_storage()._cdata)
            return reference is not None and not weak_ref_expired(reference)
        return True

    def on_host(self, tensors: Iterable[Any]) -> None:
        """Record that these tensors are on the CPU, unless the run placed them on a GPU."""
        for tensor in tensors:
            with suppress(NotImplementedError, RuntimeError, ValueError):  # sparse, or not there yet
                storage = tensor.untyped_storage()
                if self._where.get(storage._cdata) is None:
                    self._hosts[storage._cdata] = storage._weak_ref()


def _objects() -> list[Any]:
    """Return all existing objects; a copied process has them frozen, and none must be collected."""
    on = gc.isenabled()
    gc.disable()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()
        if on:
            gc.enable()


def _find_tensors(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the plain tensors in `value`, its containers and optimizers, without running user code."""
    if type(value) in _PLAIN:
        yield value
    elif isinstance(value, torch.optim.Optimizer):
        yield from _find_tensors(list(dict.values(value.state)), depth)
    elif depth < _MAX_DEPTH and type(value) in (list, tuple, dict):
        for item in value.values() if type(value) is dict else value:
            yield from _find_tensors(item, depth + 1)


def enter(core: EmulationCore, on_gpu: bool) -> Places:
    """Set up the machine for the rest of this process, whose emulation is already off.

    Unless `on_gpu` (or if this torch cannot trace for a GPU) the compiler sees everything on the CPU.
    """
    importlib.import_module(path("dynamo"))
    rules = sys.modules[f"{path('dynamo')}.trace_rules"]
    with suppress(AttributeError):  # what these know is replaced below, and was under the emulation
        rules.clear_lru_cache()
        variables = importlib.import_module(f"{path('dynamo')}.variables.torch")
        variables.TorchInGraphFunctionVariable._get_handlers()
        rules.get_torch_obj_rule_map()
    for room in ("emulation", "capture"):
        rules.add(f"gapless.{room}")
    disabled.skip_marked_code()
    places = Places(core, on_gpu and _guard_devices())
    patches = Patches()
    cuda_api.install(core, patches)
    if current_stream_in_c is not None:  # compiled code would ask the driver
        patches.set_everywhere(*place("current_stream_in_c"), torch.accelerator.current_stream)
    for name in _OF_CUDA_BUILDS:
        if not hasattr(C, name):
            setattr(C, name, type(name, (), {}))
    if places.on_gpu:
        _report_places(places, patches)
        _adopt_inputs(places)
    else:
        compilers.fakes_on_the_cpu(lambda text: None, patches, importlib.import_module(path("fake_tensors")))
    _make_on_the_cpu(places)
    return places


def _guard_devices() -> bool:
    """Give a torch without CUDA the no-op device guard of Meta, so that fake tensors on the GPU can be
    traced.

    Returns whether that was possible.
    """
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        registry = (ctypes.c_void_p * (_META + 1)).in_dll(library, _REGISTRY)
    except (OSError, ValueError):
        return False
    if not registry[_CUDA]:
        registry[_CUDA] = registry[_META]
    return bool(registry[_CUDA])


def with_index(value: Any) -> Any:
    """Return a CUDA device with its index; without one torch asks the guard, which has no current device.

    >>> with_index(torch.device("cuda")), with_index("cuda"), with_index("cpu")
    (device(type='cuda', index=0), device(type='cuda', index=0), 'cpu')
    """
    if isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] == "cuda"):
        device = torch.device(value)
        return torch.device("cuda", device.index or 0) if device.type == "cuda" else value
    return value


def move(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``tensor.to(…)`` with an explicit index for each device."""
    named = {name: with_index(value) for name, value in kwargs.items()}
    return torch.Tensor.to(tensor, *map(with_index, args), **named)


def move_to_gpu(
    tensor: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> Any:
    """``tensor.cuda(…)`` with an explicit index."""
    where = torch.device("cuda", device) if isinstance(device, int) else device or torch.device("cuda", 0)
    return move(tensor, where, non_blocking=non_blocking, memory_format=memory_format)


MOVES = {"to": move, "cuda": move_to_gpu}
"""Replacements of tensor methods, by name."""


def _report_places(places: Places, patches: Patches) -> None:
    """Make tensors report their device according to `places`."""
    cuda = torch.device("cuda", 0)
    real = _Base.device.__get__
    cpu = torch.device("cpu")

    def on_gpu(tensor: Any) -> bool:
        return bool(real(tensor) == cpu) and places(tensor) >= 0

    patches.set(torch.Tensor, "device", property(lambda tensor: cuda if on_gpu(tensor) else real(tensor)))
    real_cuda, real_cpu = _Base.is_cuda.__get__, _Base.is_cpu.__get__
    patches.set(torch.Tensor, "is_cuda", property(lambda tensor: on_gpu(tensor) or real_cuda(tensor)))
    patches.set(torch.Tensor, "is_cpu", property(lambda tensor: real_cpu(tensor) and not on_gpu(tensor)))
    fake = importlib.import_module(path("fake_tensors")).FakeTensor
    for name, replacement in MOVES.items():
        setattr(fake, name, replacement)


def _adopt_inputs(places: Places) -> None:
    """Show `places` the inputs of each frame that is compiled."""
    wrapper = sys.modules[f"{path('dynamo')}.convert_frame"].CatchErrorsWrapper
    real = wrapper.__call__

    def convert(self: Any, frame: Any, *args: Any) -> Any:
        places.adopt(frame)
        return real(self, frame, *args)

    wrapper.__call__ = convert


_libraries: list[Any] = []
"""Keeps the registrations alive."""


def _make_on_the_cpu(places: Places) -> None:
    """Allocate on the CPU what is requested on CUDA, and place it on the GPU."""

    def empty(size: Any, dtype: Any = None, *_: Any, memory_format: Any = None, **__: Any) -> torch.Tensor:
        like = memory_format or torch.contiguous_format
        return places.place(torch.empty(size, dtype=dtype, memory_format=like), 0)

    def empty_strided(size: Any, stride: Any, dtype: Any = None, *_: Any, **__: Any) -> torch.Tensor:
        return places.place(torch.empty_strided(size, stride, dtype=dtype), 0)

    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    for name, kernel in (("empty.memory_format", empty), ("empty_strided", empty_strided)):
        with suppress(RuntimeError):  # a torch with CUDA has its own
            library.impl(name, kernel, "CUDA")


class PlacingMode(TorchDispatchMode):  # type: ignore[misc]
    """While a graph runs: place results on the GPU if an input is there, else on the CPU."""

    supports_higher_order_operators = True

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _PLAIN.issuperset(types):
            return func(*args, **kwargs)
        device = kwargs.get("device")
        if isinstance(device, torch.device):
            on_gpu = device.type == "cuda"
            kwargs = {**kwargs, "device": torch.device("cpu")} if on_gpu else kwargs
        else:
            on_gpu = any(self._places(tensor) >= 0 for tensor in trees.tensors((args, kwargs)))
        output = func(*args, **kwargs)
        for tensor in trees.tensors(output):
            if type(tensor) in _PLAIN and tensor.device.type != "meta":
                self._places.place(tensor, 0 if on_gpu else HOST)
        return output
