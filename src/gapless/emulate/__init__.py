"""The CUDA device that is not there: real values on the CPU, placement and waits as on a GPU.

The room can be called: ``with gapless.emulate() as seen: …`` is :func:`gapless.emulate.handle.emulate`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gapless.emulate.handle import Seen


class _Room(ModuleType):
    """This module, callable, so that ``gapless.emulate()`` reads as users write it."""

    def __call__(
        self,
        gpu: str | None = None,
        devices: int | None = None,
        *,
        dry: bool = False,
        assume: Mapping[str, float] | None = None,
        standins: bool | None = None,
        late_copies: bool = False,
        world_size: int | None = None,
        rank: int = 0,
    ) -> AbstractContextManager[Seen]:
        """:func:`gapless.emulate.handle.emulate`."""
        from gapless.emulate.handle import emulate

        return emulate(
            gpu,
            devices,
            dry=dry,
            assume=assume,
            standins=standins,
            late_copies=late_copies,
            world_size=world_size,
            rank=rank,
        )


sys.modules[__name__].__class__ = _Room
