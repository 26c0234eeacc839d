"""NumPy arrays over pinned memory that tell when Python reads or writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gapless.emulation.races.ranges import Range

Told = Callable[[Range, bool, str], None]
"""Told which bytes of the storage are touched, whether they are written, and by what."""

_READS = (
    "all", "any", "argmax", "argmin", "argsort", "astype", "choose", "clip", "compress", "copy", "cumprod",
    "cumsum", "dot", "dump", "dumps", "flatten", "item", "max", "mean", "min", "nonzero", "prod", "repeat",
    "round", "searchsorted", "std", "sum", "take", "tobytes", "tofile", "tolist", "trace", "var", "__bool__",
    "__complex__", "__contains__", "__copy__", "__deepcopy__", "__float__", "__format__", "__index__",
    "__int__", "__reduce__", "__reduce_ex__", "__repr__", "__str__",
)  # fmt: skip
_WRITES = ("byteswap", "fill", "partition", "put", "sort")
_WRITERS = ("copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal")


class WatchedArray(np.ndarray):
    """An array that is one in all respects, and a plain one as soon as it is copied."""

    _told: Told | None
    _base: int

    def __array_finalize__(self, made_from: Any) -> None:
        self._told = getattr(made_from, "_told", None)
        self._base = getattr(made_from, "_base", 0)

    def _tell(self, writes: bool, what: str) -> None:
        if self._told is not None:
            low, high = np.lib.array_utils.byte_bounds(self) if _NEW else np.byte_bounds(self)  # type: ignore[attr-defined]
            if low >= self._base:  # a result that was copied lies elsewhere, beyond the storage at most
                self._told(Range(low - self._base, high - self._base), writes, f"numpy.{what}")

    def _plain(self) -> np.ndarray:
        return self.view(np.ndarray)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, np.ndarray) or found.base is None:
            self._tell(False, "ndarray.__getitem__")
        return found

    def __iter__(self) -> Any:
        return (self[at] for at in range(len(self)))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, WatchedArray):
            value._tell(False, "ndarray.__setitem__")
        self._tell(True, "ndarray.__setitem__")
        super().__setitem__(key, _stripped(value))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        for one in inputs:
            if isinstance(one, WatchedArray):
                one._tell(method == "at" and one is inputs[0], ufunc.__name__)
        for one in out or ():
            if isinstance(one, WatchedArray):
                one._tell(True, ufunc.__name__)
        if out is not None:
            kwargs["out"] = tuple(map(_stripped, out))
        made = getattr(ufunc, method)(*map(_stripped, inputs), **kwargs)
        return out[0] if out is not None and len(out) == 1 and method != "at" else made

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        writes = function.__name__ in _WRITERS

        def given(value: Any, first: bool = False) -> Any:
            if isinstance(value, WatchedArray):
                value._tell(first and writes, function.__name__)
                return value._plain()
            if type(value) in (list, tuple):
                return type(value)(given(one) for one in value)
            return value

        plain = [given(one, at == 0) for at, one in enumerate(args)]
        return function(*plain, **{name: given(one, name == "out") for name, one in kwargs.items()})


_NEW = hasattr(np.lib, "array_utils")


def _stripped(value: Any) -> Any:
    return value._plain() if isinstance(value, WatchedArray) else value


def _telling(name: str, writes: bool) -> Any:
    def method(self: WatchedArray, *args: Any, **kwargs: Any) -> Any:
        self._tell(writes, f"ndarray.{name}")
        return getattr(self._plain(), name)(*map(_stripped, args), **kwargs)

    method.__name__ = name
    return method


for _name in _READS + _WRITES:
    if hasattr(np.ndarray, _name):
        setattr(WatchedArray, _name, _telling(_name, _name in _WRITES))


def watched(array: np.ndarray, base: int, told: Told) -> np.ndarray:
    """`array`, which lies in the storage at address `base`, telling of what is done with it."""
    found = array.view(WatchedArray)
    found._told, found._base = told, base
    return found
