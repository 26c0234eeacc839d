"""`Identities`: what is remembered of the script's objects, by who they are and for as long as they live."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Identities(Generic[Value]):
    """Values by object, which are forgotten when the object ends.

    A ``WeakKeyDictionary`` asks whether keys are equal, and tensors answer that by element.

    >>> class Thing: pass
    >>> thing, numbers = Thing(), Identities()
    >>> numbers.put(thing, 7)
    >>> numbers.get(thing), len(numbers)
    (7, 1)
    >>> del thing
    >>> len(numbers)
    0
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def put(self, owner: Any, value: Value) -> None:
        """Remember `value` for as long as `owner` lives.

        Raises:
            TypeError: no weak reference to `owner` can be had.
        """
        key, values = id(owner), self._values
        values[key] = weakref.ref(owner, lambda _: values.pop(key, None)), value

    def get(self, owner: Any) -> Value | None:
        """The value of `owner`; None where it has none."""
        entry = self._values.get(id(owner))
        return entry[1] if entry is not None and entry[0]() is owner else None

    def any_of(self, owners: Iterable[Any]) -> bool:
        """Whether one of `owners` has a value."""
        return any(self.get(owner) is not None for owner in owners)

    def clear(self) -> None:
        """Forget all of them."""
        self._values.clear()

    def __len__(self) -> int:
        return len(self._values)
