"""What a tensor says of itself: `device`, `is_cuda`, … answered from the placement table.

Replaced on the class, because there they hold in every thread and while function modes are switched off.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.core.core import Core
from gapless.emulation.dispatch import storages
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.places import HOST
from gapless.torch_internals import DisableTorchFunction, TensorBase

_Base: Any = TensorBase


def install(core: Core, patches: Patches) -> None:
    """Answer from `core`'s placement until `patches` are undone."""
    where = core.placement.where
    state_of = core.placement.state_of
    cuda = [torch.device("cuda", index) for index in range(core.device_count)]
    real_device = _Base.device.__get__
    real_cuda, real_cpu = _Base.is_cuda.__get__, _Base.is_cpu.__get__
    disabled = DisableTorchFunction

    def state(tensor: Any) -> int:
        with disabled():
            try:
                found = where.get(tensor.untyped_storage()._cdata)
            except (NotImplementedError, RuntimeError):
                return state_of(tensor)
            if found is None:
                return HOST if type(tensor) is torch.Tensor else state_of(tensor)
            return found

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


def _install_wrappers(core: Core, patches: Patches) -> None:
    """Wrapper subclasses (DTensor, jagged tensors) are made with the device of what they wrap."""
    real = _Base._make_wrapper_subclass

    cpu = torch.device("cpu")

    def make_wrapper_subclass(cls: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("device") or next((one for one in args if isinstance(one, torch.device)), None)
        if given is None or torch.device(given).type != "cuda":
            return real(cls, *args, **kwargs)
        index = core.index_of(torch.device(given))
        args = tuple(cpu if isinstance(one, torch.device) else one for one in args)
        return core.place(
            real(cls, *args, **{**kwargs, "device": cpu} if "device" in kwargs else kwargs), index
        )

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make_wrapper_subclass))
