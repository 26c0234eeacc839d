"""`Race`: two accesses to the same memory without an order between them."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine, Stack, user_line

RaceKind = Literal["in-flight-read", "in-flight-write", "unordered", "freed", "collective", "generator"]
"""What races with what.

- ``in-flight-read``: the CPU reads memory that a copy may still be writing;
- ``in-flight-write``: the CPU writes memory that a copy to the GPU may still be reading;
- ``unordered``: accesses of two streams;
- ``freed``: memory is reused by a new tensor while another stream may still use it;
- ``collective``: an asynchronous collective's result (or input) is used before its ``wait()``;
- ``generator``: two threads draw from one generator at once.
"""

Cause = Literal["", "early-event", "unrecorded-event", "other-event", "host-wait", "wrong-stream"]
"""Why an existing synchronization does not help: the event was recorded too early, never, or in another
stream; the CPU waited where the stream should have; or another stream waited."""


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
    """Two accesses to the same memory that a GPU may do in any order, or at once; the script issues `earlier`
    first.

    It occurred `times` times, in `steps` of the steps; `bytes` is the size of the common memory. Of freed
    memory, `freed` is the stack that freed it, and `later` what reused it. If a synchronization does not
    help, `cause` says why, and `cause_stack` where it is.

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
