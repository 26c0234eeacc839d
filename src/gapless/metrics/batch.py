"""The arguments of one update, and the values derived from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Derivation = Callable[..., Any]
CPU = torch.device("cpu")


class Batch:
    """The arguments of one update, shared by every statistic that reads them.

    `args` are the arguments of ``update``, in order, on the device of the states; 0-dim CPU tensors become
    numbers if that is a GPU. Values that several statistics need (such as labels from logits) are computed
    once: :meth:`derive` caches them by function and configuration for this update.

    Args:
        args: the arguments of ``update``.
        device: the device of the states, to which tensors are copied without waiting.
        graph: whether tensors keep their autograd graph.

    >>> def softmax(batch, dim):
    ...     return batch.args[0].softmax(dim)
    >>> batch = Batch((torch.zeros(1, 2),), CPU)
    >>> batch.derive(softmax, 1)
    tensor([[0.5000, 0.5000]])
    >>> batch.derive(softmax, 1) is batch.derive(softmax, 1)
    True
    """

    __slots__ = ("_derived", "args")

    def __init__(self, args: Sequence[Any], device: torch.device, graph: bool = False) -> None:
        self.args = (
            args
            if all_on_device(args, device)
            else tuple([prepare_argument(value, device, graph) for value in args])
        )
        self._derived: dict[Any, Any] = {}

    def derive(self, function: Derivation, *config: Any, **options: Any) -> Any:
        """Return ``function(batch, *config, **options)``, computed once per update.

        `config` must be hashable. `options` are not part of the key: they follow from it, or say where to
        put the result.
        """
        key = (function, *config)
        if key not in self._derived:
            self._derived[key] = function(self, *config, **options)
        return self._derived[key]


def all_on_device(args: Sequence[Any], device: torch.device) -> bool:
    """Whether every tensor in `args` is on `device` without a gradient, and no list has to be converted."""
    for value in args:
        if isinstance(value, Tensor):
            if value.requires_grad or value.device != device:
                return False
        elif isinstance(value, (list, tuple)):
            return False
    return True


def prepare_argument(value: Any, device: torch.device, graph: bool = False) -> Any:
    """Return `value` as an update may use it on `device`, without waiting.

    Tensors are detached unless `graph` is set. A CPU tensor is copied through pinned memory; a 0-dim one
    becomes a Python number, which is passed as a kernel argument.
    """
    if not isinstance(value, Tensor):
        if isinstance(value, (list, tuple)) and not is_text(value):
            return prepare_argument(torch.as_tensor(value), device, graph)
        return value
    if value.requires_grad and not graph:
        value = value.detach()
    if value.device == device:
        return value
    if value.device.type != "cpu":
        return value.to(device, non_blocking=True)
    return value.item() if value.dim() == 0 else to_device(value, device)


def is_text(value: Sequence[Any]) -> bool:
    """Whether `value` holds strings, which stay on the CPU, or rows of strings (rows may be empty)."""
    first = next(iter(value), None)
    return isinstance(first, str) or (isinstance(first, (list, tuple)) and (not first or is_text(first)))


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Copy `value`, a CPU tensor, to `device` without waiting for the copy."""
    if device.type == "cuda":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def move_to_device(value: Tensor, device: torch.device) -> Tensor:
    """Return `value` on `device`. Waits only for a copy from a GPU to the CPU."""
    if value.device == device:
        return value
    return to_device(value, device) if value.device.type == "cpu" else value.to(device)


def has_graph(args: Iterable[Any]) -> bool:
    """Whether gradients are enabled and one of `args` is a tensor that requires them."""
    return torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured on the current stream of `device`."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def device_of(args: Sequence[Any]) -> torch.device | None:
    """Return the device of the first tensor in `args` that is not on the CPU, if any."""
    for value in args:
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return value.device
    return None
