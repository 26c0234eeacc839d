"""Arguments of calls: what tells two calls apart for a compiler, and a copy small enough to keep."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import MemberDescriptorType
from typing import Any

import torch

from gapless.emulation.compiled.copies import SHARED, VALUES, Copies, DeviceOf, Held, unheard
from gapless.emulation.compiled.reach import NOTHING, is_record
from gapless.torch_internals import DisableTorchDispatch

_DEEPEST = 5
_MANY = 1024
_FEW_BYTES = 1 << 20
_MANY_BYTES = 16 << 20
"""Up to here values are kept: of fractions, whose exact values decide little, and of integers, which index
and count."""
_MARK = "_dynamo_"


def signature(value: Any, device_of: DeviceOf, followed: frozenset[int] = frozenset()) -> Any:
    """What of an argument a compiled function can be guarded on, as something that can be hashed.

    What was met before in the same call is told by its number there: compilers guard on what is the same. Of
    objects with the ids `followed` nothing is told but that they are the same.

    >>> signature(torch.zeros(2, 3), lambda tensor: -1)[1:3]
    (torch.Size([2, 3]), (3, 1))
    >>> one = [1]
    >>> signature([one, one], lambda tensor: -1)[2]
    ('again', 1)
    """
    return _Signing(device_of, followed)(value)


class _Signing:
    """The signature of one call."""

    def __init__(self, device_of: DeviceOf, followed: frozenset[int]) -> None:
        self._device_of, self._followed = device_of, followed
        self._seen: dict[int, int] = {}

    def __call__(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if kind in VALUES:
            return kind, value
        new = len(self._seen)
        at = self._seen.setdefault(id(value), new)
        if at < new:
            return "again", at
        if isinstance(value, torch.Tensor):
            strides = value.stride() if value.layout is torch.strided else ()
            return kind, value.shape, strides, value.dtype, self._device_of(value), value.requires_grad
        if isinstance(value, torch.nn.Module) or depth > _DEEPEST or id(value) in self._followed:
            return kind, id(value)
        if isinstance(value, set | frozenset) or _is_long(value):
            return kind, len(value)
        inside = _entries(value)
        if isinstance(inside, dict):
            return kind, *((str(name), self(one, depth + 1)) for name, one in inside.items())
        if inside or isinstance(value, list | tuple | deque):
            return kind, *(self(one, depth + 1) for one in inside)
        return kind, id(value) if callable(value) or isinstance(value, type) else 0


def _is_long(value: Any) -> bool:
    """Whether it has more entries than a compiler would guard on, and than can be looked at in each call."""
    return isinstance(value, list | tuple | deque | dict) and len(value) > _MANY


def _is_plain(value: Any) -> bool:
    """Whether a container holds nothing but plain values."""
    values = (*value, *value.values()) if isinstance(value, dict) else value
    return all(type(entry) in VALUES for entry in values)


@dataclass(frozen=True)
class Tensor:
    """A tensor as it was: `values` where they may matter and are small, `marks` that a compiler looks at."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: int
    requires_grad: bool
    values: torch.Tensor | None
    marks: dict[str, Any] = field(default_factory=dict)


class Gone(Exception):
    """An argument has ended, and it could not be copied."""


@dataclass(frozen=True, eq=False)
class Same:
    """A container or an object that the script may change later, and what was `inside` it; an object is held
    weakly as `whole`, and of a container that is its kind and, for a deque, its size."""

    whole: Any
    inside: Any

    def put(self, change: Callable[[Any], Any], begun: Callable[[Any], None]) -> Any:
        """The object itself, or a container like the one that was, with what was in it. `change` makes an
        entry anew, and `begun` hears of the whole before that."""
        if isinstance(self.whole, Held):
            whole = held(self.whole)
            begun(whole)
            with suppress(Exception):  # anybody's class
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


def held(value: Held) -> Any:
    """The object that is held, or its copy.

    Raises:
        Gone: it has ended without one.
    """
    found = value()
    if found is NOTHING:
        raise Gone(value.kind.__name__)
    return found


class Keeper:
    """Copies arguments of one call, what is the same staying the same. Nothing of the script's is kept alive
    for it: parameters, modules, functions, and objects whose ids are `followed` are held by `copies`."""

    def __init__(self, copies: Copies, followed: frozenset[int] = frozenset()) -> None:
        self._copies, self._followed = copies, followed
        self._device_of, self._values = copies.device_of, copies.values
        self._made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if type(value) in VALUES:
            return value
        known = self._made.get(id(value))
        if known is not None:
            return known[1]
        if is_record(value):
            with suppress(TypeError):  # no weak reference to it can be had
                self._made[id(value)] = value, self._copies.held(value)  # objects may hold each other
        made = self._kept(value, depth)
        self._made[id(value)] = value, made
        return made

    def _kept(self, value: Any, depth: int) -> Any:
        if isinstance(value, torch.Tensor):
            plain = type(value) is torch.Tensor and value.layout is torch.strided
            return self._tensor(value) if plain else self._weakly(value)
        if depth > _DEEPEST or id(value) in self._followed or _is_long(value):
            return self._weakly(value)
        if isinstance(value, set):
            return Same((type(value), None), [self(entry, depth + 1) for entry in value])
        entries = _entries(value)
        old = list(entries.values() if isinstance(entries, dict) else entries)
        new = [self(entry, depth + 1) for entry in old]
        kinds = {type(after) for after, before in zip(new, old, strict=True) if after is not before}
        if kinds - {Same, Held} or (kinds and isinstance(value, tuple)):
            return over(value, lambda entry: self(entry, depth + 1))
        if isinstance(value, tuple):
            return value
        if not (entries or isinstance(value, list | deque | dict)):
            return self._weakly(value)
        inside = dict(zip(entries, new, strict=True)) if isinstance(entries, dict) else new
        if isinstance(value, list | deque | dict):
            return Same((type(value), getattr(value, "maxlen", None)), inside)
        return Same(self._weakly(value), inside)

    def _weakly(self, value: Any) -> Any:
        """`value` for as long as the script has it, and a copy of it afterwards, if there can be one."""
        if isinstance(value, SHARED) or (_is_long(value) and _is_plain(value)):
            return value
        try:
            return self._copies.kept(value)
        except TypeError:  # no weak reference to it can be had
            return Held(lambda: None, type(value)) if isinstance(value, list | deque | dict) else value

    def _tensor(self, value: torch.Tensor) -> Tensor:
        size = value.numel() * value.element_size()
        most = _FEW_BYTES if value.is_floating_point() or value.is_complex() else _MANY_BYTES
        values = None
        if self._values and size <= most:
            with DisableTorchDispatch(), torch.no_grad():
                values = value.detach().clone()
        marks = {name: one for name, one in vars(value).items() if name.startswith(_MARK)}
        return Tensor(
            tuple(value.shape),
            value.stride(),
            value.dtype,
            self._device_of(value),
            value.requires_grad,
            values,
            marks,
        )


def _entries(value: Any) -> Any:
    """What it holds: a sequence, or a dictionary by name; nothing where none of that is known."""
    if isinstance(value, list | tuple | deque | dict):
        return value
    return vars(value) if is_record(value) else ()


def over(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to what it holds: itself where nothing of it changes."""
    inside = _entries(value)
    if not isinstance(inside, dict):
        parts = [change(one) for one in inside]
        if all(new is old for new, old in zip(parts, inside, strict=True)):
            return value
        if isinstance(value, deque):
            return type(value)(parts, value.maxlen)
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    changed = {name: new for name, one in inside.items() if (new := change(one)) is not one}
    if not changed:
        return value
    made = copy.copy(value) if isinstance(value, dict) else _like(value)
    for name, one in changed.items():
        if isinstance(made, dict):
            made[name] = one
        else:
            object.__setattr__(made, name, one)
    return made


def _like(value: Any) -> Any:
    """Another object with the attributes of `value`, of whose making and end its class does not hear: a copy
    is none that the script made."""
    kind: Any = type(value)
    try:
        made: Any = object.__new__(unheard(kind) if hasattr(kind, "__del__") else kind)
    except TypeError:  # a class written in C, which alone can make one
        return copy.copy(value)
    for slot in (one for part in kind.__mro__ for one in vars(part).values()):
        if isinstance(slot, MemberDescriptorType):
            with suppress(AttributeError):  # it has no value
                slot.__set__(made, slot.__get__(value))
    vars(made).update(vars(value))
    return made


def settled(value: Any, copy: Callable[[Any], Any], depth: int = 0) -> Any:
    """What `Keeper` kept, with copies in place of what the script still has."""
    if isinstance(value, Held):
        return Held.of(copy(value)) if value() is not NOTHING else value
    if type(value) in VALUES or depth > _DEEPEST or isinstance(value, Tensor):
        return value
    if isinstance(value, Same):
        whole = settled(value.whole, copy) if isinstance(value.whole, Held) else value.whole
        return Same(whole, over(value.inside, lambda entry: settled(entry, copy, depth + 1)))
    return over(value, lambda entry: settled(entry, copy, depth + 1))


class Rebuilder:
    """Makes arguments again of what `Keeper` kept; `place` says of each tensor on which device it was.
    Without `values` nothing is written into large ones, which then take no memory."""

    def __init__(self, place: Callable[[torch.Tensor, int], object], values: bool) -> None:
        self._place, self._values = place, values
        self._made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, Held):
            return held(value)
        if type(value) in VALUES or depth > _DEEPEST or _is_long(value):
            return value
        known = self._made.get(id(value))
        if known is not None:
            return known[1]
        self._made[id(value)] = value, value  # objects may hold each other
        made = self._again(value, depth)
        self._made[id(value)] = value, made
        return made

    def _again(self, value: Any, depth: int) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Same):
            return value.put(
                lambda entry: self(entry, depth + 1),
                lambda whole: self._made.update({id(value): (value, whole)}),
            )
        return over(value, lambda one: self(one, depth + 1))

    def _tensor(self, kept: Tensor) -> torch.Tensor:
        made = torch.empty_strided(kept.shape, kept.strides, dtype=kept.dtype)
        with torch.no_grad():
            if kept.values is not None:
                spread = all(
                    stride or size < 2 for stride, size in zip(kept.strides, kept.shape, strict=True)
                )
                made = made.copy_(kept.values) if spread else kept.values.clone()
            elif not self._values:
                pass
            elif kept.dtype.is_floating_point and made.numel():
                made.uniform_(-1, 1)
            else:
                made.zero_()
        self._place(made, kept.device)
        for name, mark in kept.marks.items():
            setattr(made, name, mark)
        return made.requires_grad_(kept.requires_grad)
