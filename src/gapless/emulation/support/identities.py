"""`Identities`: values remembered per object, by identity, for as long as the object lives."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Identities(Generic[Value]):
    """Values by object identity; an entry is dropped when its object ends.

    A ``WeakKeyDictionary`` compares keys with ``==``, which tensors do element by element.

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
            TypeError: `owner` does not support weak references.
        """
        key, values = id(owner), self._values
        values[key] = weakref.ref(owner, lambda _: values.pop(key, None)), value

    def get(self, owner: Any) -> Value | None:
        """Return the value of `owner`; None if it has none."""
        entry = self._values.get(id(owner))
        return entry[1] if entry is not None and entry[0]() is owner else None

    def any_of(self, owners: Iterable[Any]) -> bool:
        """Whether any of `owners` has a value."""
        return any(self.get(owner) is not None for owner in owners)

    def clear(self) -> None:
        """Forget all of them."""
        self._values.clear()

    def __len__(self) -> int:
        return len(self._values)
