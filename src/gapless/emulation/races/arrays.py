"""NumPy arrays over pinned memory that report when Python reads or writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gapless.emulation.races.ranges import ByteRange

AccessListener = Callable[[ByteRange, bool, str], None]
"""Called with the bytes of the storage that are accessed, whether they are written, and the NumPy call."""

_READING_METHODS = (
    "all", "any", "argmax", "argmin", "argsort", "astype", "choose", "clip", "compress", "copy", "cumprod",
    "cumsum", "dot", "dump", "dumps", "flatten", "item", "max", "mean", "min", "nonzero", "prod", "repeat",
    "round", "searchsorted", "std", "sum", "take", "tobytes", "tofile", "tolist", "trace", "var", "__bool__",
    "__complex__", "__contains__", "__copy__", "__deepcopy__", "__float__", "__format__", "__index__",
    "__int__", "__reduce__", "__reduce_ex__", "__repr__", "__str__",
)  # fmt: skip
_WRITING_METHODS = ("byteswap", "fill", "partition", "put", "sort")
_WRITING_FUNCTIONS = ("copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal")


class WatchedArray(np.ndarray):
    """An array that reports its accesses to a listener; copies of it are plain arrays."""

    _listener: AccessListener | None
    _base: int

    def __array_finalize__(self, source: Any) -> None:
        self._listener = getattr(source, "_listener", None)
        self._base = getattr(source, "_base", 0)

    def _report(self, writes: bool, action: str) -> None:
        if self._listener is not None:
            low, high = np.lib.array_utils.byte_bounds(self) if _HAS_ARRAY_UTILS else np.byte_bounds(self)  # type: ignore[attr-defined]
            if low >= self._base:  # copied results lie elsewhere: bytes past the storage match no flight
                self._listener(ByteRange(low - self._base, high - self._base), writes, f"numpy.{action}")

    def _plain(self) -> np.ndarray:
        return self.view(np.ndarray)

    def __getitem__(self, key: Any) -> Any:
        result = super().__getitem__(key)
        if not isinstance(result, np.ndarray) or result.base is None:
            self._report(False, "ndarray.__getitem__")
        return result

    def __iter__(self) -> Any:
        return (self[at] for at in range(len(self)))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, WatchedArray):
            value._report(False, "ndarray.__setitem__")
        self._report(True, "ndarray.__setitem__")
        super().__setitem__(key, _without_watch(value))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        for array in inputs:
            if isinstance(array, WatchedArray):
                array._report(method == "at" and array is inputs[0], ufunc.__name__)
        for array in out or ():
            if isinstance(array, WatchedArray):
                array._report(True, ufunc.__name__)
        if out is not None:
            kwargs["out"] = tuple(map(_without_watch, out))
        result = getattr(ufunc, method)(*map(_without_watch, inputs), **kwargs)
        return out[0] if out is not None and len(out) == 1 and method != "at" else result

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        writes = function.__name__ in _WRITING_FUNCTIONS

        def unwatch(value: Any, first: bool = False) -> Any:
            if isinstance(value, WatchedArray):
                value._report(first and writes, function.__name__)
                return value._plain()
            if type(value) in (list, tuple):
                return type(value)(unwatch(item) for item in value)
            return value

        plain = [unwatch(arg, at == 0) for at, arg in enumerate(args)]
        return function(*plain, **{name: unwatch(arg, name == "out") for name, arg in kwargs.items()})


_HAS_ARRAY_UTILS = hasattr(np.lib, "array_utils")


def _without_watch(value: Any) -> Any:
    return value._plain() if isinstance(value, WatchedArray) else value


def _watched_method(name: str, writes: bool) -> Any:
    def method(self: WatchedArray, *args: Any, **kwargs: Any) -> Any:
        self._report(writes, f"ndarray.{name}")
        return getattr(self._plain(), name)(*map(_without_watch, args), **kwargs)

    method.__name__ = name
    return method


for _name in _READING_METHODS + _WRITING_METHODS:
    if hasattr(np.ndarray, _name):
        setattr(WatchedArray, _name, _watched_method(_name, _name in _WRITING_METHODS))


def watch_array(array: np.ndarray, base: int, listener: AccessListener) -> np.ndarray:
    """Return a view of `array`, in a storage at address `base`, that reports accesses to `listener`."""
    view = array.view(WatchedArray)
    view._listener, view._base = listener, base
    return view
