"""A machine for the compiler alone: tensors say that they are on the GPU, and the CPU computes them.

The compiler asks tensors where they are, and traces with fakes that are there. Modes of the emulation are
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
from gapless.emulation.core.core import Core
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
"""Their numbers in ``c10::DeviceType``."""
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_DEEPEST = 3
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_OF_CUDA_BUILDS = ("_cuda_CUDAAllocator_AllocatorState",)
"""Names that the code generator imports where torch says that it was built with CUDA."""
_Base: Any = TensorBase


class Places:
    """Where tensors are: those that the run has placed are known, and so are the others of before. What code
    between two graphs has made since then is taken to be on the GPU where it goes into the next one."""

    def __init__(self, core: Core, on_gpu: bool) -> None:
        self._where = core.placement.where
        self._put = core.placement.put
        self._hosts: dict[int, Any] = {}
        self.on_gpu = on_gpu
        if on_gpu:
            self.on_host(one for one in _objects() if type(one) in _PLAIN)

    def __call__(self, tensor: Any) -> int:
        """The index of the GPU that a tensor is on, or `HOST`."""
        try:
            key = tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError, ValueError):
            return HOST
        found = self._where.get(key)
        if found is not None:
            return found if found >= 0 else HOST
        return HOST

    def place(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        """Say that `tensor` is there; gives it back."""
        if index < 0:
            self.on_host((tensor,))
        elif self._where.get(tensor.untyped_storage()._cdata) is None:
            self._put(tensor, index)
        return tensor

    def adopt(self, frame: Any) -> None:
        """A frame is about to be compiled: what it is given is on the GPU unless something else is known."""
        if not self.on_gpu:
            return
        for tensor in _held(list(frame.f_locals.values())):
            if tensor.ndim and _Base.device.__get__(tensor).type == "cpu" and not self.knows(tensor):
                self.place(tensor, 0)

    def knows(self, tensor: Any) -> bool:
        """Whether `tensor` is known to be on the CPU."""
        with suppress(NotImplementedError, RuntimeError, ValueError):
            known = self._hosts.get(tensor.untyped_storage()._cdata)
            return known is not None and not weak_ref_expired(known)
        return True

    def on_host(self, tensors: Iterable[Any]) -> None:
        """These are on the CPU, where the run has not placed them on a GPU."""
        for tensor in tensors:
            with suppress(NotImplementedError, RuntimeError, ValueError):  # sparse, or not there yet
                storage = tensor.untyped_storage()
                if self._where.get(storage._cdata) is None:
                    self._hosts[storage._cdata] = storage._weak_ref()


def _objects() -> list[Any]:
    """All objects of before; in a copy of a process they are frozen, so that none of them is collected."""
    on = gc.isenabled()
    gc.disable()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()
        if on:
            gc.enable()


def _held(value: Any, depth: int = 0) -> Iterator[Any]:
    """The plain tensors in `value`, its containers and optimizers; no code of anybody's is run for it."""
    if type(value) in _PLAIN:
        yield value
    elif isinstance(value, torch.optim.Optimizer):
        yield from _held(list(dict.values(value.state)), depth)
    elif depth < _DEEPEST and type(value) in (list, tuple, dict):
        for one in value.values() if type(value) is dict else value:
            yield from _held(one, depth + 1)


def enter(core: Core, on_gpu: bool) -> Places:
    """Set the machine up for the rest of this process, in which the emulation is off already.

    Where it is not `on_gpu`, or this torch cannot trace for one, everything is on the CPU for the compiler.
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
    disabled.keep_out()
    places = Places(core, on_gpu and _guard_devices())
    patches = Patches()
    cuda_api.install(core, patches)
    if current_stream_in_c is not None:  # compiled code would ask the driver
        patches.set_everywhere(*place("current_stream_in_c"), torch.accelerator.current_stream)
    for name in _OF_CUDA_BUILDS:
        if not hasattr(C, name):
            setattr(C, name, type(name, (), {}))
    if places.on_gpu:
        _say_where(places, patches)
        _adopt_inputs(places)
    else:
        compilers.fakes_on_the_cpu(lambda text: None, patches, importlib.import_module(path("fake_tensors")))
    _make_on_the_cpu(places)
    return places


def _guard_devices() -> bool:
    """Give a torch without CUDA the device guard that does nothing, Meta's, so that fakes on the GPU can be
    traced; false where that cannot be done."""
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        registry = (ctypes.c_void_p * (_META + 1)).in_dll(library, _REGISTRY)
    except (OSError, ValueError):
        return False
    if not registry[_CUDA]:
        registry[_CUDA] = registry[_META]
    return bool(registry[_CUDA])


def with_index(value: Any) -> Any:
    """A device of CUDA's with its index: asked for without one, it is that of the guard, which is none.

    >>> with_index(torch.device("cuda")), with_index("cuda"), with_index("cpu")
    (device(type='cuda', index=0), device(type='cuda', index=0), 'cpu')
    """
    if isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] == "cuda"):
        device = torch.device(value)
        return torch.device("cuda", device.index or 0) if device.type == "cuda" else value
    return value


def move(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``tensor.to(…)``, with the index of each device."""
    named = {name: with_index(one) for name, one in kwargs.items()}
    return torch.Tensor.to(tensor, *map(with_index, args), **named)


def move_to_gpu(
    tensor: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> Any:
    """``tensor.cuda(…)``, in the same way."""
    where = torch.device("cuda", device) if isinstance(device, int) else device or torch.device("cuda", 0)
    return move(tensor, where, non_blocking=non_blocking, memory_format=memory_format)


MOVES = {"to": move, "cuda": move_to_gpu}
"""What stands in for methods of tensors, by name."""


def _say_where(places: Places, patches: Patches) -> None:
    """Let tensors answer from `places`."""
    cuda = torch.device("cuda", 0)
    real = _Base.device.__get__
    cpu = torch.device("cpu")

    def on_gpu(tensor: Any) -> bool:
        return bool(real(tensor) == cpu) and places(tensor) >= 0

    patches.set(torch.Tensor, "device", property(lambda one: cuda if on_gpu(one) else real(one)))
    real_cuda, real_cpu = _Base.is_cuda.__get__, _Base.is_cpu.__get__
    patches.set(torch.Tensor, "is_cuda", property(lambda one: on_gpu(one) or real_cuda(one)))
    patches.set(torch.Tensor, "is_cpu", property(lambda one: real_cpu(one) and not on_gpu(one)))
    fake = importlib.import_module(path("fake_tensors")).FakeTensor
    for name, moved in MOVES.items():
        setattr(fake, name, moved)


def _adopt_inputs(places: Places) -> None:
    """Let `places` see what each frame is given that is compiled."""
    wrapper = sys.modules[f"{path('dynamo')}.convert_frame"].CatchErrorsWrapper
    real = wrapper.__call__

    def convert(self: Any, frame: Any, *args: Any) -> Any:
        places.adopt(frame)
        return real(self, frame, *args)

    wrapper.__call__ = convert


_libraries: list[Any] = []
"""Registrations last as long as these objects."""


def _make_on_the_cpu(places: Places) -> None:
    """Make what is asked for "on CUDA" on the CPU, and place it on the GPU."""

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


class Placing(TorchDispatchMode):  # type: ignore[misc]
    """While a graph runs: results of what is on the GPU are there, too, and the others on the CPU."""

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
        asked = kwargs.get("device")
        if isinstance(asked, torch.device):
            on_gpu = asked.type == "cuda"
            kwargs = {**kwargs, "device": torch.device("cpu")} if on_gpu else kwargs
        else:
            on_gpu = any(self._places(one) >= 0 for one in trees.tensors((args, kwargs)))
        made = func(*args, **kwargs)
        for one in trees.tensors(made):
            if type(one) in _PLAIN and one.device.type != "meta":
                self._places.place(one, 0 if on_gpu else HOST)
        return made
