"""Modes that are turned on for all metrics, from one line on or inside a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar


class Mode:
    """A mode that applies from here on, or inside a ``with`` block.

    Args:
        mode: False to turn it off.
    """

    on: ClassVar[bool] = False

    def __init__(self, mode: bool = True) -> None:
        self._before = type(self).on
        type(self).on = mode

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        type(self).on = self._before
