"""One update's arguments, and what has been derived from them so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Derivation = Callable[..., Any]
CPU = torch.device("cpu")


class Batch:
    """The arguments of one update, shared by every statistic that reads them.

    What several statistics need (the labels of logits, say) is derived once: :meth:`derive` keeps it under
    the function and its configuration until the update is over. With `graph` tensors keep theirs.
    """

    __slots__ = ("_derived", "args")

    def __init__(self, args: Sequence[Any], device: torch.device, graph: bool = False) -> None:
        self.args = args if ready(args, device) else tuple([admit(value, device, graph) for value in args])
        self._derived: dict[Any, Any] = {}

    def derive(self, function: Derivation, *config: Any, **given: Any) -> Any:
        """``function(batch, *config, **given)``, computed once per update.

        `config` must be hashable; `given` is what follows from it, or says where the result is to be.
        """
        key = (function, *config)
        if key not in self._derived:
            self._derived[key] = function(self, *config, **given)
        return self._derived[key]


def ready(args: Sequence[Any], device: torch.device) -> bool:
    """Whether all of `args` may be used on `device` as they are."""
    for value in args:
        if isinstance(value, Tensor):
            if value.requires_grad or value.device != device:
                return False
        elif isinstance(value, (list, tuple)):
            return False
    return True


def admit(value: Any, device: torch.device, graph: bool = False) -> Any:
    """`value` as an update may use it on `device` without waiting.

    Tensors come without their graph, unless `graph` says otherwise. A tensor of the host travels through
    pinned memory; one with no dimension becomes a Python number, which operators take as a kernel's argument.
    """
    if not isinstance(value, Tensor):
        if isinstance(value, (list, tuple)) and not is_text(value):
            return admit(torch.as_tensor(value), device, graph)
        return value
    if value.requires_grad and not graph:
        value = value.detach()
    if value.device == device:
        return value
    if value.device.type != "cpu":
        return value.to(device, non_blocking=True)
    return value.item() if value.dim() == 0 else to_device(value, device)


def is_text(value: Sequence[Any]) -> bool:
    """Whether `value` holds strings, which stay on the host, or rows of such, which may be empty."""
    first = next(iter(value), None)
    return isinstance(first, str) or (isinstance(first, (list, tuple)) and (not first or is_text(first)))


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """`value`, a tensor of the host, on `device`; the host does not wait for the copy."""
    if device.type == "cuda":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def moved(value: Tensor, device: torch.device) -> Tensor:
    """`value` on `device`. Only the way from a device to the host waits."""
    if value.device == device:
        return value
    return to_device(value, device) if value.device.type == "cpu" else value.to(device)


def has_graph(args: Iterable[Any]) -> bool:
    """Whether one of `args` is a tensor that gradients are to be taken for."""
    return torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in args)


def is_capturing(device: torch.device) -> bool:
    """Whether what `device` is asked for becomes part of a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def device_of(args: Sequence[Any]) -> torch.device | None:
    """The accelerator that holds one of `args`, if any does."""
    for value in args:
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return value.device
    return None
