"""`gapless.assume`: what values are, said in the program."""

from __future__ import annotations

from typing import TypeVar

import torch

from gapless.emulation.dry.guesses.guess import constant
from gapless.emulation.emulator import current

Value = TypeVar("Value", bound=torch.Tensor)


def assume(tensor: Value, value: float) -> Value:
    """In a dry run, take each element of `tensor` to be `value`; gives `tensor` back.

    It holds for all that shares memory with `tensor`. Where `tensor` has values of its own this does nothing,
    and so it does on a GPU.

    >>> assume(torch.ones(()), 3.0).item()
    1.0
    """
    emulator = current()
    values = emulator.core.values if emulator is not None else None
    if values is not None and values.of(tensor) is not None:
        known = constant(float(value))
        known.maker = "assume"
        values.mark(tensor, known)
    return tensor
