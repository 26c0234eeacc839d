"""Which tensor of an optimizer is read while it steps: its count of steps, its learning rate, or another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

_OPTIONS = ("capturable", "fused")
"""What optimizers take to leave such tensors on the GPU, in the order in which they are named."""


class Stepping:
    """An optimizer whose step is under way."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._keys: dict[int, str] = {}
        self._size = -1

    def read(self, tensor: Any, on_device: Callable[[Any], bool]) -> str:
        """``state['step'] of Adam (takes capturable, fused)``; "" where `tensor` is none of the optimizer's.

        A value that is computed from a number of a group, as a step size is from the learning rate, counts
        as that number.
        """
        if not isinstance(tensor, Tensor):
            return ""
        storage, optimizer = _storage(tensor), self._optimizer
        if self._size != len(optimizer.state):  # the first step makes the state
            self._keys = {_storage(held): key for key, held in _state(optimizer)}
            self._size = len(optimizer.state)
        key = self._keys.get(storage)
        told = f"state['{key}']" if key else _number(optimizer, storage, on_device)
        if not told:
            return ""
        takes = ", ".join(option for option in _OPTIONS if option in optimizer.defaults)
        return f"{told} of {type(optimizer).__name__}{f' (takes {takes})' if takes else ''}"


def _number(optimizer: Any, storage: int, on_device: Callable[[Any], bool]) -> str:
    """The number of a group that is read; else one that is on the device, from which it was computed."""
    held = [
        (key, each)
        for group in optimizer.param_groups
        for key, value in group.items()
        if key != "params"
        for each in (value if isinstance(value, tuple | list) else (value,))
        if isinstance(each, Tensor) and on_device(each)
    ]
    keys = [key for key, each in held if _storage(each) == storage] or [key for key, _ in held]
    return f"param_groups['{keys[0]}']" if keys else ""


def _state(optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the optimizer's state that are numbers; nothing reads the others as they are."""
    for of_parameter in optimizer.state.values():
        if isinstance(of_parameter, dict):
            for key, held in of_parameter.items():
                if isinstance(held, Tensor) and held.numel() == 1:
                    yield key, held


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return id(tensor)
