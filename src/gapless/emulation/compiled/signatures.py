"""Arguments of calls: the signature that a compiler guards on, and a copy small enough to keep."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import MemberDescriptorType
from typing import Any

import torch

from gapless.emulation.compiled.copies import SHARED, VALUES, Copies, DeviceOf, HeldObject, without_finalizer
from gapless.emulation.compiled.reach import NOTHING, is_record
from gapless.torch_internals import DisableTorchDispatch

_MAX_DEPTH = 5
"""Deepest nesting of containers read: bounds the time of each call."""
_MAX_ENTRIES = 1024
"""Longest container read entry by entry."""
_MAX_FLOAT_BYTES = 1 << 20
"""Largest floating-point tensor whose values are kept: exact ones rarely matter."""
_MAX_INTEGER_BYTES = 16 << 20
"""Largest tensor of integers whose values are kept: they are indices and counts."""
_DYNAMO_PREFIX = "_dynamo_"


def signature(value: Any, device_of: DeviceOf, followed: frozenset[int] = frozenset()) -> Any:
    """Return what a compiler can guard on in an argument, hashable.

    An object that occurs again is given by its number: compilers guard on identity. Objects with ids in
    `followed` are given by id only.

    >>> signature(torch.zeros(2, 3), lambda tensor: -1)[1:3]
    (torch.Size([2, 3]), (3, 1))
    >>> values = [1]
    >>> signature([values, values], lambda tensor: -1)[2]
    ('again', 1)
    """
    return _SignatureBuilder(device_of, followed)(value)


class _SignatureBuilder:
    """Builds the signature of one call."""

    def __init__(self, device_of: DeviceOf, followed: frozenset[int]) -> None:
        self._device_of, self._followed = device_of, followed
        self._visited: dict[int, int] = {}

    def __call__(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if kind in VALUES:
            return kind, value
        new = len(self._visited)
        at = self._visited.setdefault(id(value), new)
        if at < new:
            return "again", at
        if isinstance(value, torch.Tensor):
            strides = value.stride() if value.layout is torch.strided else ()
            return kind, value.shape, strides, value.dtype, self._device_of(value), value.requires_grad
        if isinstance(value, torch.nn.Module) or depth > _MAX_DEPTH or id(value) in self._followed:
            return kind, id(value)
        if isinstance(value, set | frozenset) or _is_long(value):
            return kind, len(value)
        inside = _entries(value)
        if isinstance(inside, dict):
            return kind, *((str(name), self(entry, depth + 1)) for name, entry in inside.items())
        if inside or isinstance(value, list | tuple | deque):
            return kind, *(self(entry, depth + 1) for entry in inside)
        return kind, id(value) if callable(value) or isinstance(value, type) else 0


def _is_long(value: Any) -> bool:
    """Whether `value` has more entries than a compiler would guard on or we can read in each call."""
    return isinstance(value, list | tuple | deque | dict) and len(value) > _MAX_ENTRIES


def _is_plain(value: Any) -> bool:
    """Whether a container holds only plain values."""
    values = (*value, *value.values()) if isinstance(value, dict) else value
    return all(type(entry) in VALUES for entry in values)


@dataclass(frozen=True)
class KeptTensor:
    """A tensor at the time of a call: `values` if small, `marks` are attributes the compiler reads."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: int
    requires_grad: bool
    values: torch.Tensor | None
    marks: dict[str, Any] = field(default_factory=dict)


class ArgumentGone(Exception):
    """An argument was collected and could not be copied."""


@dataclass(frozen=True, eq=False)
class KeptObject:
    """A container or object and its contents (`inside`) at the time of a call. `whole` is the weakly held
    object, or the type of the container and, for a deque, its maximal length."""

    whole: Any
    inside: Any

    def put(self, change: Callable[[Any], Any], begun: Callable[[Any], None]) -> Any:
        """Return the object, or a new container, with the contents restored. `change` recreates an entry;
        `begun` is called with the whole before that."""
        if isinstance(self.whole, HeldObject):
            whole = value_of_held(self.whole)
            begun(whole)
            with suppress(Exception):  # arbitrary classes
                vars(whole).update({name: change(entry) for name, entry in self.inside.items()})
            return whole
        kind, most = self.whole
        whole = kind([], most) if most is not None else kind()
        begun(whole)
        if isinstance(self.inside, dict):
            whole.update({name: change(entry) for name, entry in self.inside.items()})
        else:
            (whole.update if isinstance(whole, set) else whole.extend)(
                [change(entry) for entry in self.inside]
            )
        return whole


def value_of_held(value: HeldObject) -> Any:
    """Return the held object or its copy.

    Raises:
        ArgumentGone: it was collected without one.
    """
    referent = value()
    if referent is NOTHING:
        raise ArgumentGone(value.kind.__name__)
    return referent


class ArgumentKeeper:
    """Copies the arguments of one call, preserving identities, without keeping the script's objects alive:
    parameters, modules, functions and objects with ids in `followed` are held weakly by `copies`."""

    def __init__(self, copies: Copies, followed: frozenset[int] = frozenset()) -> None:
        self._copies, self._followed = copies, followed
        self._device_of, self._values = copies.device_of, copies.values
        self._memo: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if type(value) in VALUES:
            return value
        memoized = self._memo.get(id(value))
        if memoized is not None:
            return memoized[1]
        if is_record(value):
            with suppress(TypeError):  # no weak reference to it can be had
                self._memo[id(value)] = value, self._copies.held(value)  # objects may hold each other
        kept = self._keep(value, depth)
        self._memo[id(value)] = value, kept
        return kept

    def _keep(self, value: Any, depth: int) -> Any:
        if isinstance(value, torch.Tensor):
            plain = type(value) is torch.Tensor and value.layout is torch.strided
            return self._tensor(value) if plain else self._hold_weakly(value)
        if depth > _MAX_DEPTH or id(value) in self._followed or _is_long(value):
            return self._hold_weakly(value)
        if isinstance(value, set):
            return KeptObject((type(value), None), [self(entry, depth + 1) for entry in value])
        entries = _entries(value)
        old = list(entries.values() if isinstance(entries, dict) else entries)
        new = [self(entry, depth + 1) for entry in old]
        kinds = {type(after) for after, before in zip(new, old, strict=True) if after is not before}
        if kinds - {KeptObject, HeldObject} or (kinds and isinstance(value, tuple)):
            return map_entries(value, lambda entry: self(entry, depth + 1))
        if isinstance(value, tuple):
            return value
        if not (entries or isinstance(value, list | deque | dict)):
            return self._hold_weakly(value)
        inside = dict(zip(entries, new, strict=True)) if isinstance(entries, dict) else new
        if isinstance(value, list | deque | dict):
            return KeptObject((type(value), getattr(value, "maxlen", None)), inside)
        return KeptObject(self._hold_weakly(value), inside)

    def _hold_weakly(self, value: Any) -> Any:
        """Hold `value` weakly with a copy, if possible."""
        if isinstance(value, SHARED) or (_is_long(value) and _is_plain(value)):
            return value
        try:
            return self._copies.kept(value)
        except TypeError:  # no weak reference to it can be had
            return HeldObject(lambda: None, type(value)) if isinstance(value, list | deque | dict) else value

    def _tensor(self, value: torch.Tensor) -> KeptTensor:
        size = value.numel() * value.element_size()
        most = _MAX_FLOAT_BYTES if value.is_floating_point() or value.is_complex() else _MAX_INTEGER_BYTES
        values = None
        if self._values and size <= most:
            with DisableTorchDispatch(), torch.no_grad():
                values = value.detach().clone()
        marks = {name: mark for name, mark in vars(value).items() if name.startswith(_DYNAMO_PREFIX)}
        return KeptTensor(
            tuple(value.shape),
            value.stride(),
            value.dtype,
            self._device_of(value),
            value.requires_grad,
            values,
            marks,
        )


def _entries(value: Any) -> Any:
    """The entries of a container, or the attributes of a plain object; () for anything else."""
    if isinstance(value, list | tuple | deque | dict):
        return value
    return vars(value) if is_record(value) else ()


def map_entries(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to the entries of `value`; return `value` itself if none changes."""
    inside = _entries(value)
    if not isinstance(inside, dict):
        parts = [change(entry) for entry in inside]
        if all(new is old for new, old in zip(parts, inside, strict=True)):
            return value
        if isinstance(value, deque):
            return type(value)(parts, value.maxlen)
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    changed = {name: new for name, entry in inside.items() if (new := change(entry)) is not entry}
    if not changed:
        return value
    result = copy.copy(value) if isinstance(value, dict) else _shallow_copy(value)
    for name, entry in changed.items():
        if isinstance(result, dict):
            result[name] = entry
        else:
            object.__setattr__(result, name, entry)
    return result


def _shallow_copy(value: Any) -> Any:
    """Return an object with the attributes of `value`, without calling its constructor or finalizer."""
    kind: Any = type(value)
    try:
        result: Any = object.__new__(without_finalizer(kind) if hasattr(kind, "__del__") else kind)
    except TypeError:  # a class written in C needs its own constructor
        return copy.copy(value)
    for slot in (slot for part in kind.__mro__ for slot in vars(part).values()):
        if isinstance(slot, MemberDescriptorType):
            with suppress(AttributeError):  # it has no value
                slot.__set__(result, slot.__get__(value))
    vars(result).update(vars(value))
    return result


def settle(value: Any, copy: Callable[[Any], Any], depth: int = 0) -> Any:
    """Replace the script's objects by copies in what `ArgumentKeeper` kept."""
    if isinstance(value, HeldObject):
        return HeldObject.of(copy(value)) if value() is not NOTHING else value
    if type(value) in VALUES or depth > _MAX_DEPTH or isinstance(value, KeptTensor):
        return value
    if isinstance(value, KeptObject):
        whole = settle(value.whole, copy) if isinstance(value.whole, HeldObject) else value.whole
        return KeptObject(whole, map_entries(value.inside, lambda entry: settle(entry, copy, depth + 1)))
    return map_entries(value, lambda entry: settle(entry, copy, depth + 1))


class Rebuilder:
    """Rebuilds arguments from what `ArgumentKeeper` kept; `place` puts each tensor on its device.
    Without `values` tensors other than small ones of integers stay unwritten, and so take no memory."""

    def __init__(self, place: Callable[[torch.Tensor, int], object], values: bool) -> None:
        self._place, self._values = place, values
        self._memo: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, HeldObject):
            return value_of_held(value)
        if type(value) in VALUES or depth > _MAX_DEPTH or _is_long(value):
            return value
        memoized = self._memo.get(id(value))
        if memoized is not None:
            return memoized[1]
        self._memo[id(value)] = value, value  # objects may hold each other
        rebuilt = self._rebuild(value, depth)
        self._memo[id(value)] = value, rebuilt
        return rebuilt

    def _rebuild(self, value: Any, depth: int) -> Any:
        if isinstance(value, KeptTensor):
            return self._tensor(value)
        if isinstance(value, KeptObject):
            return value.put(
                lambda entry: self(entry, depth + 1),
                lambda whole: self._memo.update({id(value): (value, whole)}),
            )
        return map_entries(value, lambda entry: self(entry, depth + 1))

    def _tensor(self, kept: KeptTensor) -> torch.Tensor:
        tensor = torch.empty_strided(kept.shape, kept.strides, dtype=kept.dtype)
        with torch.no_grad():
            if kept.values is not None:
                spread = all(
                    stride or size < 2 for stride, size in zip(kept.strides, kept.shape, strict=True)
                )
                tensor = tensor.copy_(kept.values) if spread else kept.values.clone()
            elif not self._values and (kept.dtype.is_floating_point or tensor.nbytes > _MAX_INTEGER_BYTES):
                pass
            elif kept.dtype.is_floating_point and tensor.numel():
                tensor.uniform_(-1, 1)
            else:
                tensor.zero_()  # unwritten memory would hold indices out of range
        self._place(tensor, kept.device)
        for name, mark in kept.marks.items():
            setattr(tensor, name, mark)
        return tensor.requires_grad_(kept.requires_grad)
