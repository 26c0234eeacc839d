"""`LoneStore`: a store shared by all ranks, for the only rank that runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_NUMBERS = re.compile(r"\d+")
UNKNOWN = b"0"
"""Value of a key that only another rank sets: also valid as a counter."""


class LoneStore(dist.Store):
    """Answers as if every other rank had done what this one did, and come first: nothing waits.

    A counter increases by the sum of all ranks. A key that another rank would have set has the value this one
    set under the same key with other numbers in it (``"host/3"`` for ``"host/0"``), else ``"0"``, and
    `missed` is called with it.
    """

    def __init__(self, size: int, missed: Callable[[str], None] = lambda key: None) -> None:
        super().__init__()
        self._size = size
        self._missed = missed
        self._values: dict[str, bytes] = {}
        self._alike: dict[str, bytes] = {}
        self._queues: dict[str, list[bytes]] = {}

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._values[key] = self._alike[_NUMBERS.sub("#", key)] = data

    def get(self, key: str) -> bytes:
        data = self._values.get(key, self._alike.get(_NUMBERS.sub("#", key)))
        if data is None:
            self._missed(key)
            return UNKNOWN
        return data

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, value: int) -> int:
        before = self._values.get(key, b"0")
        total = int(before) + value * self._size
        self.set(key, str(total))
        return total

    def append(self, key: str, value: str | bytes) -> None:
        added = value.encode() if isinstance(value, str) else bytes(value)
        self.set(key, self._values.get(key, b"") + added * self._size)

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        current = self._values.get(key)
        if (current is None and not expected_value) or current == _to_bytes(expected_value):
            self.set(key, desired_value)
        return self._values.get(key, _to_bytes(expected_value))

    def check(self, keys: list[str]) -> bool:
        return True

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # type: ignore[override]
        """Do nothing: every key is set."""

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._queues.setdefault(key, []).append(_to_bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        queue = self._queues.get(key)
        return queue.pop(0) if queue else self.get(key)

    def queue_len(self, key: str) -> int:
        return len(self._queues.get(key, ()))

    def has_extended_api(self) -> bool:
        return True

    # C++ looks for these names.
    deleteKey: Any = delete_key  # noqa: N815
    getNumKeys: Any = num_keys  # noqa: N815
    multiGet: Any = multi_get  # noqa: N815
    multiSet: Any = multi_set  # noqa: N815
    hasExtendedApi: Any = has_extended_api  # noqa: N815


def _to_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
