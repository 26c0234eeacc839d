"""Let a bare index mean CUDA in `torch.device(0)` and `model.to(0)`; torch finds no accelerator here.

`torch.device` is a C type whose constructor cannot be replaced, so a class takes its name. Its instances are
real devices; `isinstance`, `issubclass`, pickling and attributes behave like the real type's.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless import torch_internals
from gapless.emulation.dispatch.functions import as_device
from gapless.emulation.support.patches import Patches

_real: Any = torch.device


class _Meta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], int) and not isinstance(args[0], bool):
            return _real("cuda", args[0])
        return _real(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _real)

    def __subclasscheck__(cls, other: Any) -> bool:
        return other is cls or issubclass(other, _real)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _real

    def __hash__(cls) -> int:
        return hash(_real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_real, name)

    def __repr__(cls) -> str:
        return repr(_real)


device: Any = _Meta("device", (), {"__module__": "torch", "__doc__": _real.__doc__})


def install(patches: Patches) -> None:
    """Accept a bare index wherever a device is expected."""
    patches.set(torch, "device", device)
    real_parse = torch_internals.parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        other = kwargs.pop("tensor", None)
        if other is None and args and isinstance(args[0], torch.Tensor):
            other, args = args[0], args[1:]
        if other is not None:  # C++ would read the CPU as its device
            args = (other.device, other.dtype, *args)
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = (as_device(args[0]), *args[1:])
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = as_device(kwargs["device"])
        return real_parse(*args, **kwargs)

    patches.set(*torch_internals.place("parse_to"), parse_to)
