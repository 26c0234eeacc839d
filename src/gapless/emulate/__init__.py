"""The CUDA device that is not there: real values on the CPU, placement and waits as on a GPU.

The room can be called: ``with gapless.emulate() as seen: …`` is :func:`gapless.emulate.handle.emulate`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """This module, callable, so that ``gapless.emulate()`` reads as users write it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from gapless.emulate.handle import emulate

        return emulate(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
