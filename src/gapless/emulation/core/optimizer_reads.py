"""Name the optimizer's tensor that is read while it steps: its step count, its learning rate, or another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

_OPTIONS = ("capturable", "fused")
"""Options of optimizers that leave such tensors on the GPU, in the order in which they are named."""


class Stepping:
    """An optimizer whose step is under way."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._keys: dict[int, str] = {}
        self._size = -1

    def read(self, tensor: Any, on_device: Callable[[Any], bool]) -> str:
        """Describe a read of `tensor`: ``state['step'] of Adam (takes capturable, fused)``; "" if not the
        optimizer's.

        A value that is computed from a setting of a group, as a step size is from the learning rate, counts
        as that setting.
        """
        if not isinstance(tensor, Tensor):
            return ""
        storage, optimizer = _storage_address(tensor), self._optimizer
        if self._size != len(optimizer.state):  # the first step makes the state
            self._keys = {_storage_address(held): key for key, held in _scalar_state(optimizer)}
            self._size = len(optimizer.state)
        key = self._keys.get(storage)
        source = f"state['{key}']" if key else _group_setting(optimizer, storage, on_device)
        if not source:
            return ""
        takes = ", ".join(option for option in _OPTIONS if option in optimizer.defaults)
        return f"{source} of {type(optimizer).__name__}{f' (takes {takes})' if takes else ''}"


def _group_setting(optimizer: Any, storage: int, on_device: Callable[[Any], bool]) -> str:
    """Return the group setting that is read; else one on the device, from which it was computed."""
    held = [
        (key, each)
        for group in optimizer.param_groups
        for key, value in group.items()
        if key != "params"
        for each in (value if isinstance(value, tuple | list) else (value,))
        if isinstance(each, Tensor) and on_device(each)
    ]
    keys = [key for key, each in held if _storage_address(each) == storage] or [key for key, _ in held]
    return f"param_groups['{keys[0]}']" if keys else ""


def _scalar_state(optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the scalar tensors of the optimizer's state with their keys; nothing reads the others."""
    for of_parameter in optimizer.state.values():
        if isinstance(of_parameter, dict):
            for key, held in of_parameter.items():
                if isinstance(held, Tensor) and held.numel() == 1:
                    yield key, held


def _storage_address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return id(tensor)
