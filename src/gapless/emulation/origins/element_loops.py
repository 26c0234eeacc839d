"""Loops that walk over the elements of a tensor on the device."""

from __future__ import annotations

import dis
import sys
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch

from gapless.emulation.origins.tags import WALKED, Place, attributes_of, users_frame
from gapless.emulation.support import stacks
from gapless.model import SourceLine

_MAKES_ITERATOR, _CALLS, _LOOPS = "GET_ITER", ("CALL", "PRECALL"), "FOR_ITER"
"""Instructions, or beginnings of their names."""


def note_iteration(tensor: torch.Tensor) -> None:
    """Note that a tensor on the device is iterated over, if a loop does that: ``a, b = pair`` is none."""
    frame = users_frame()
    if frame is None or _loop_end(frame.f_code, frame.f_lasti) is None:
        return
    attributes = attributes_of(tensor)
    if attributes is not None and not tensor.is_inference():
        attributes[WALKED] = ((id(frame.f_code), frame.f_lasti), tensor._version)


def walking_loop(tensor: torch.Tensor, attributes: dict[str, Any]) -> Place | None:
    """Return the running loop over the elements of the storage that `tensor` is a part of; None if something
    was written to it since."""
    walked = attributes.get(WALKED)
    if walked is None or tensor.is_inference():
        return None
    place, version = walked
    is_part = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    return place if is_part and tensor._version == version and _is_running(place) else None


def _is_running(place: Place) -> bool:
    """Whether the loop that begins at `place` runs in one of the calls under way."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if id(frame.f_code) == place[0]:
            end = _loop_end(frame.f_code, place[1])
            if end is not None and place[1] <= frame.f_lasti < end:
                return True
        frame = frame.f_back
    return False


@lru_cache(maxsize=1024)
def _loop_end(code: CodeType, lasti: int) -> int | None:
    """Return where the loop ends whose iterator is made at `lasti`, or by the caller from the result, as in
    ``for i, x in enumerate(tensor)``; None if there is no loop."""
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    position = next((n for n, each in enumerate(instructions) if each.offset == lasti), len(instructions))
    following = instructions[position:]
    while following and following[0].opname.startswith(_CALLS):
        following = following[1:]
    if not following or following[0].opname != _MAKES_ITERATOR:
        return None
    if len(following) > 1 and following[1].opname == _LOOPS:
        return int(following[1].argval)
    # A comprehension has code of its own, which runs within this line.
    ranges = [(start, end, line) for start, end, line in code.co_lines() if line is not None]
    own = next((line for start, end, line in ranges if start <= lasti < end), None)
    return max((end for _, end, line in ranges if line == own), default=None)


def as_line(place: Place | None) -> SourceLine | None:
    """Return the source line of a place."""
    return next(iter(stacks.resolve(place)), None) if place is not None else None
