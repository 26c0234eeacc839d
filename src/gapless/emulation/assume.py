"""`gapless.assume`: state the values of a tensor in the program."""

from __future__ import annotations

from typing import TypeVar

import torch

from gapless.emulation.dry.guesses.guess import constant
from gapless.emulation.emulator import current

Value = TypeVar("Value", bound=torch.Tensor)


def assume(tensor: Value, value: float) -> Value:
    """In a dry run, take each element of `tensor` to be `value`; return `tensor`.

    It also holds for tensors that share memory with `tensor`. It does nothing if `tensor` has real values,
    or on a GPU.

    >>> assume(torch.ones(()), 3.0).item()
    1.0
    """
    emulator = current()
    values = emulator.core.values if emulator is not None else None
    if values is not None and values.record_of(tensor) is not None:
        guess = constant(float(value))
        guess.maker = "assume"
        values.mark(tensor, guess)
    return tensor
