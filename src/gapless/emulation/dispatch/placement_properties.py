"""Answer `Tensor.device`, `is_cuda` and `is_cpu` from the placement table.

The properties are replaced on the class, so that they hold in every thread and with function modes off.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.dispatch import storages
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.places import HOST
from gapless.torch_internals import DisableTorchFunction, TensorBase

_Base: Any = TensorBase


def install(core: EmulationCore, patches: Patches) -> None:
    """Replace the properties by answers from `core`'s placement, until `patches` are undone."""
    where = core.placement.where
    state_of = core.placement.state_of
    cuda = [torch.device("cuda", index) for index in range(core.device_count)]
    real_device = _Base.device.__get__
    real_cuda, real_cpu = _Base.is_cuda.__get__, _Base.is_cpu.__get__
    disabled = DisableTorchFunction

    def state(tensor: Any) -> int:
        with disabled():
            try:
                index = where.get(tensor.untyped_storage()._cdata)
            except (NotImplementedError, RuntimeError):
                return state_of(tensor)
            if index is None:
                return HOST if type(tensor) is torch.Tensor else state_of(tensor)
            return index

    def device(tensor: Any) -> Any:
        index = state(tensor)
        return cuda[index] if index >= 0 else real_device(tensor)

    def is_cuda(tensor: Any) -> bool:
        return state(tensor) >= 0 or real_cuda(tensor)

    def is_cpu(tensor: Any) -> bool:
        return state(tensor) < 0 and real_cpu(tensor)

    for name, getter in (("device", device), ("is_cuda", is_cuda), ("is_cpu", is_cpu)):
        patches.set(torch.Tensor, name, property(getter))
    storages.install(core, patches)
    _install_wrappers(core, patches)


def _install_wrappers(core: EmulationCore, patches: Patches) -> None:
    """Create wrapper subclasses (DTensor, jagged tensors) on the emulated device they name."""
    real = _Base._make_wrapper_subclass

    cpu = torch.device("cpu")

    def make_wrapper_subclass(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device") or next((arg for arg in args if isinstance(arg, torch.device)), None)
        if device is None or torch.device(device).type != "cuda":
            return real(cls, *args, **kwargs)
        index = core.index_of(torch.device(device))
        args = tuple(cpu if isinstance(arg, torch.device) else arg for arg in args)
        return core.place(
            real(cls, *args, **{**kwargs, "device": cpu} if "device" in kwargs else kwargs), index
        )

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make_wrapper_subclass))
