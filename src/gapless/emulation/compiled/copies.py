"""Copy what compiled code needs, so that recording it does not keep the script's objects alive.

The script's objects are held weakly; when a compiled callable is dropped, what it reaches is copied: modules,
optimizers and objects attribute by attribute, functions with their closures, tensors with sizes, and with
values if they are small.
"""

from __future__ import annotations

import enum
import logging
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import PurePath
from types import NoneType
from typing import Any

import torch

from gapless.emulation.compiled.reach import NOTHING
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

VALUES = frozenset(
    {int, float, bool, str, bytes, complex, NoneType, torch.dtype, torch.device, torch.Size, torch.layout}
)
"""Immutable types that contain no other objects."""
SHARED: tuple[Any, ...] = (
    type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.GenericAlias, property, staticmethod, classmethod, range, slice,
    enum.Enum, re.Pattern, logging.Logger, logging.Handler, type(threading.Lock()), type(threading.RLock()),
    PurePath, torch.Generator, torch.Stream, torch.Event, torch.memory_format, torch.finfo, torch.iinfo,
)  # fmt: skip
"""Types whose instances hold no tensor and are shared by copies."""
_OWN_PACKAGE = "gapless."
_WRAPPER_ID = "_torchdynamo_wrapper_id"
"""The attribute by which the compiler recognizes its own wrapper functions."""
_CONTAINERS: tuple[Any, ...] = (OrderedDict, defaultdict, dict, list, set, deque)
_MAX_OBJECTS = 20_000
"""Most objects copied: what reaches more is practically the whole script."""
_MAX_BYTES = 64 << 20
"""Most bytes of values copied per callable; further tensors keep their sizes only."""

DeviceOf = Callable[[torch.Tensor], int]


class CannotCopy(Exception):
    """An object that cannot be copied was reached."""


class HeldObject:
    """A weakly held object of the script, and its copies; the last copy replaces it once it is collected."""

    __slots__ = ("alive", "copies", "kind")

    def __init__(self, alive: Callable[[], Any], kind: type) -> None:
        self.alive, self.kind = alive, kind
        self.copies: list[Any] = []

    def __call__(self) -> Any:
        """The object or its last copy; `NOTHING` if it was collected without one."""
        value = self.alive()
        if value is None:
            return self.copies[-1] if self.copies else NOTHING
        return value

    @classmethod
    def of(cls, value: Any) -> HeldObject:
        """Wrap a copy, held strongly."""
        return cls(lambda: value, type(value))

    def all(self) -> Iterator[Any]:
        """Yield the object, if alive, and its copies."""
        value = self.alive()
        if value is not None:
            yield value
        yield from self.copies

    @property
    def lives(self) -> bool:
        return self.alive() is not None


class Copies:
    """All held objects and their copies; `device_of` returns a tensor's device. Without `values` tensors keep
    sizes only."""

    def __init__(self, device_of: DeviceOf, values: bool) -> None:
        self.device_of, self.values = device_of, values
        self.tensors: list[tuple[weakref.ref[torch.Tensor], int]] = []
        """Copied tensors and the device each belongs on; they are not placed during the run."""
        self._held: dict[int, HeldObject] = {}

    def held(self, value: Any) -> HeldObject:
        """Return `value` held weakly.

        Raises:
            TypeError: it does not support weak references.
        """
        existing = self._held.get(id(value))
        if existing is not None and existing.alive() is value:
            return existing
        held = self._held[id(value)] = HeldObject(weakref.ref(value), type(value))
        return held

    def kept(self, value: Any) -> HeldObject:
        """Return `value` held weakly, with a copy, if it can be copied."""
        held = self.held(value)
        if not held.copies:
            with suppress(CannotCopy):
                self.copier()(value)
        return held

    def copied(self, value: Any, copy: Any) -> None:
        """Attach a copy to whoever holds `value`.

        It is found by id: while it is collected, weak references to it are dead already.
        """
        held = self._held.get(id(value))
        if held is not None and held.kind is type(value) and held.alive() in (value, None):
            held.copies.append(copy)

    def copier(self) -> Copier:
        """Return a copier; what it copies shares objects as the originals do."""
        return Copier(self)

    def place(self, put: Callable[[torch.Tensor, int], object]) -> None:
        """Call `put` with each copied tensor and its GPU."""
        for reference, index in self.tensors:
            tensor = reference()
            if tensor is not None and index >= 0:
                put(tensor, index)


class Copier:
    """Copies objects and all they reach.

    Raises:
        CannotCopy: an object that cannot be copied, or too many.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._memo: dict[int, tuple[Any, Any]] = {}
        self._objects, self._bytes = _MAX_OBJECTS, _MAX_BYTES

    def __call__(self, value: Any) -> Any:
        try:
            with DisableTorchFunction(), DisableTorchDispatch(), torch.no_grad():
                return self._copy(value)
        except CannotCopy:
            raise
        except Exception as error:  # arbitrary classes, and too deep recursion
            raise CannotCopy(f"{type(error).__name__}: {error}") from error

    def _copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in VALUES or isinstance(value, SHARED):
            return value
        memoized = self._memo.get(id(value))
        if memoized is not None:
            return memoized[1]
        self._objects -= 1
        if self._objects < 0:
            raise CannotCopy("too many objects")
        copy = self._copy_kind(value, kind)
        self._keep(value, copy)
        return copy

    def _keep(self, value: Any, copy: Any) -> Any:
        """Memoize the copy of `value` early, as objects may refer to each other."""
        if id(value) not in self._memo:
            self._memo[id(value)] = value, copy
            if copy is not value:
                self._copies.copied(value, copy)
        return copy

    def _copy_kind(self, value: Any, kind: Any) -> Any:
        if isinstance(value, HeldObject):
            return self._held(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(self._copy(value.__func__), self._copy(value.__self__))
        if isinstance(value, types.CellType):
            return self._fill(value, types.CellType())
        if isinstance(value, partial):
            parts = self._copy(value.func), self._copy(value.args), self._copy(value.keywords)
            return partial(parts[0], *parts[1], **parts[2])
        if isinstance(value, weakref.ref):
            referent = value()
            return value if referent is None or kind is not weakref.ref else weakref.ref(self._copy(referent))
        if kind in (tuple, frozenset) or (isinstance(value, tuple) and hasattr(value, "_make")):
            return self._copy_fixed(value, kind)
        if isinstance(value, _CONTAINERS):
            return self._container(value, kind)
        if kind.__module__ == "numpy":
            return self._array(value)
        return self._object(value, kind)

    def _held(self, held: HeldObject) -> Any:
        value = held()
        if value is NOTHING:
            raise CannotCopy("it has ended")
        return self._copy(value) if held.lives else value

    def _copy_fixed(self, value: Any, kind: Any) -> Any:
        parts = [self._copy(part) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return kind._make(parts) if hasattr(kind, "_make") else kind(parts)

    def _container(self, value: Any, kind: Any) -> Any:
        base = next(base for base in _CONTAINERS if isinstance(value, base))
        copy = base.__new__(kind)
        if base is deque:
            deque.__init__(copy, (), value.maxlen)
        elif base is defaultdict:
            defaultdict.__init__(copy, value.default_factory)
        self._keep(value, copy)
        if issubclass(base, dict):
            for name in list(base.keys(value)):
                base.__setitem__(copy, self._copy(name), self._copy(base.__getitem__(value, name)))
        else:
            add = base.add if base is set else base.append
            for part in list(base.__iter__(value)):
                add(copy, self._copy(part))
        self._attributes(value, copy)
        return copy

    def _object(self, value: Any, kind: Any) -> Any:
        if kind.__module__.startswith(_OWN_PACKAGE):
            again = getattr(value, "copied_by", None)
            return value if again is None else again(self._copy)
        if kind.__module__.startswith("torch._C") and "ProcessGroup" in kind.__name__:
            return value
        try:
            copy: Any = object.__new__(without_finalizer(kind) if hasattr(kind, "__del__") else kind)
        except TypeError:
            raise CannotCopy(f"a {kind.__qualname__}") from None
        self._keep(value, copy)
        self._attributes(value, copy)
        return copy

    def _attributes(self, value: Any, copy: Any) -> None:
        for slot in (slot for part in type(value).__mro__ for slot in vars(part).values()):
            if isinstance(slot, types.MemberDescriptorType):
                with suppress(AttributeError):  # it has no value
                    slot.__set__(copy, self._copy(slot.__get__(value)))
        if hasattr(value, "__dict__"):
            own = vars(copy)
            for name, attribute in list(vars(value).items()):
                own[name] = self._copy(attribute)

    def _function(self, function: Any) -> Any:
        if getattr(sys.modules.get(function.__module__), function.__name__, None) is function:
            return function
        old = function.__closure__ or ()
        cells = tuple([self._memo.get(id(cell), (None, types.CellType()))[1] for cell in old])
        copy = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, None, cells or None
        )
        self._keep(function, copy)
        for cell, new in zip(old, cells, strict=True):
            self._fill(cell, new)
        copy.__defaults__ = self._copy(function.__defaults__)
        copy.__kwdefaults__ = self._copy(function.__kwdefaults__)
        copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
        for name, attribute in list(vars(function).items()):
            vars(copy)[name] = id(copy) if name == _WRAPPER_ID else self._copy(attribute)
        return copy

    def _fill(self, cell: Any, new: Any) -> Any:
        """Fill cell `new` with a copy of the contents of `cell`, once for all functions sharing it."""
        if id(cell) not in self._memo:
            self._keep(cell, new)
            with suppress(ValueError):  # not filled yet
                new.cell_contents = self._copy(cell.cell_contents)
        return new

    def _array(self, value: Any) -> Any:
        size = getattr(value, "nbytes", 0)
        self._bytes -= size
        if self._bytes < 0 or getattr(value, "dtype", None) == "O":
            raise CannotCopy("an array")
        return value.copy() if hasattr(value, "copy") else value

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        kind = type(value)
        plain = kind in (torch.Tensor, torch.nn.Parameter) or kind is getattr(torch.nn, "Buffer", None)
        if not plain or value.layout is not torch.strided or value.device.type == "meta":
            raise CannotCopy(f"a {kind.__name__}")
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        size = value.numel() * value.element_size()
        if self._copies.values and size <= self._bytes:
            self._bytes -= size
            copy = value.detach().clone()
        if kind is not torch.Tensor:
            copy = copy.as_subclass(kind)
        copy.requires_grad_(value.requires_grad)
        self._keep(value, copy)
        self._copies.tensors.append((weakref.ref(copy), self._copies.device_of(value)))
        for name, attribute in list(vars(value).items()):
            setattr(copy, name, self._copy(attribute))
        return copy


@cache
def without_finalizer(kind: Any) -> Any:
    """Return a subclass of `kind` without finalizer; `kind` itself if it defines `__init_subclass__`."""
    if any("__init_subclass__" in vars(part) for part in kind.__mro__[:-1]):
        return kind
    silent = {"__del__": lambda self: None, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), silent)
