"""`GraphFault`: a mistake with one of the script's CUDA graphs, with or without an error on a GPU."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.event import Site
from gapless.model.source import SourceLine, Stack, user_line

FaultKind = Literal[
    "refused",
    "rebound",
    "frozen",
    "not-replayed",
    "output",
    "gone",
    "part",
    "made-inside",
    "gradients",
    "order",
]
"""What is wrong.

- ``refused``: CUDA or torch refuses the capture (or the replay); all others give wrong numbers without an
  error;
- ``rebound``: a variable refers to another tensor than the one that the graph reads;
- ``frozen``: a number recorded by the capture has another value now;
- ``not-replayed``: something that only the capture did;
- ``output``: an output that replays have overwritten, or none has written yet;
- ``gone``: memory of an input that was freed or moved;
- ``part``: an input that was written only in part;
- ``made-inside``: an optimizer's state that each replay creates anew;
- ``gradients``: an optimizer does not see the gradients of replays;
- ``order``: memory that another graph of the same pool has overwritten.
"""


class GraphFault(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One mistake at one place: `stack` is where it shows, `capture` where the capture began.

    `what` names the operator, variable or tensor; `told` are sentences about what was recorded. If refused,
    `said` is CUDA's or torch's message, and `site` what would wait there, if anything would. It occurred
    `times` times.

    >>> GraphFault(kind="rebound", what="static_x").times
    1
    """

    kind: FaultKind
    what: str = ""
    said: str = ""
    told: tuple[str, ...] = ()
    stack: Stack = ()
    capture: Stack = ()
    site: Site | None = None
    times: int = 1

    @property
    def line(self) -> SourceLine | None:
        """The user's line where it shows, if any."""
        return user_line(self.stack)

    @property
    def captured_at(self) -> SourceLine | None:
        """The user's line where the capture began."""
        return user_line(self.capture)
