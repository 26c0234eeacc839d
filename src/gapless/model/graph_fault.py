"""`GraphFault`: what one of the script's CUDA graphs does wrong on a GPU, with or without an error."""

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

``refused``: CUDA or torch ends the capture (or the replay) there; all else goes on with wrong numbers.
``rebound``: a variable got another tensor, where the graph reads the old one; ``frozen``: a number that the
capture took along has another value now; ``not-replayed``: what only the capture did; ``output``: an output
that replays have overwritten, or none has written yet; ``gone``: memory of an input that was given back or
moved; ``part``: an input that was filled in part; ``made-inside``: an optimizer's state that each replay
makes anew; ``gradients``: an optimizer does not see the gradients of replays; ``order``: memory that another
graph of the same pool has overwritten.
"""


class GraphFault(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One fault at one place: `stack` is where it shows, `capture` where its capture began.

    `what` names the operator, variable or tensor; `told` are sentences with what was seen. Of what was
    refused `said` are CUDA's or torch's words, and `site` what would wait there, if anything would. It was
    met `times` times.

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
