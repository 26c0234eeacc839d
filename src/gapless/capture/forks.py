"""Forked copies of this process without the emulation's modes, so that timing in them is not slowed down."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gapless.emulation.dispatch.functions import ForkedMode, FunctionMode
from gapless.emulation.dispatch.operators import OperatorMode
from gapless.torch_internals import (
    current_dispatch_mode,
    current_function_mode,
    pop_dispatch_mode,
    pop_function_mode,
)

_plain = False
_registered = False


@contextmanager
def plain_forks() -> Iterator[None]:
    """Let processes forked in this block leave the modes of the emulation, and with them their cost.

    Using the device there raises torch's own error about missing CUDA.
    """
    global _plain, _registered
    if not _registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_leave_modes)  # behind the emulation's own
        _registered = True
    _plain = True
    try:
        yield
    finally:
        _plain = False


def _leave_modes() -> None:
    if not _plain:
        return
    while isinstance(current_function_mode(), (ForkedMode, FunctionMode)):
        pop_function_mode()
    while isinstance(current_dispatch_mode(), OperatorMode):
        pop_dispatch_mode()
