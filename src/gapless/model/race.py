"""`Race`: two accesses to the same memory without an order between them."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine, Stack, user_line

RaceKind = Literal["in-flight-read", "in-flight-write", "unordered", "freed", "collective", "generator"]
"""What races with what.

``in-flight-read``: the CPU reads what a copy to it may still be filling; ``in-flight-write``: the CPU writes
what a copy to the GPU may still be reading; ``unordered``: two streams; ``freed``: memory is given to a new
tensor while another stream may still use it; ``collective``: the result (or what it is given) of an
asynchronous collective before its ``wait()``; ``generator``: two threads draw from one generator at once.
"""

Cause = Literal["", "early-event", "unrecorded-event", "other-event", "host-wait", "wrong-stream"]
"""Why a synchronization that is there does not help: the event was recorded too early, was never recorded, or
stands in another stream; the CPU waited where the stream should have; the wait was on another stream."""


class Access(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One side of a race: `what` did it (``aten::add``, ``Tensor.tolist``), `where` it ran ("stream 1",
    "the default stream", "the CPU"), whether it `writes`, and its stack, innermost first."""

    what: str = ""
    where: str = ""
    writes: bool = False
    stack: Stack = ()

    @property
    def line(self) -> SourceLine | None:
        """The user's line, if there is one."""
        return user_line(self.stack)


class Race(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Two accesses to the same memory, `earlier` and `later` as the script issues them, that a GPU may do in
    any order, or at once.

    It happened `times` times, in `steps` of the steps; `bytes` is how much the two have in common. Of memory
    that was given back, `freed` is the stack that gave it back, and `later` is what got it. Where a
    synchronization is there and does not help, `cause` says why, and `cause_stack` where it is.

    >>> Race(kind="unordered", times=2).times
    2
    """

    kind: RaceKind
    earlier: Access = Access()
    later: Access = Access()
    freed: Stack = ()
    cause: Cause = ""
    cause_stack: Stack = ()
    times: int = 1
    steps: int = 0
    bytes: int = 0
    backward: bool = False
