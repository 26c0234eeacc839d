"""`Traffic`: what a rank sends and receives in a training step."""

from __future__ import annotations

import msgspec

from gapless.model.source import SourceLine


class Traffic(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The collectives of one kind, in one group, at one line, per training step.

    `kind` is ``all_reduce``, ``all_gather``, ``send``, … and `group` who takes part: `ranks` of them, or the
    one that something is sent to or comes from. `times` is how often, `sent` and `received` are the bytes
    that this rank moves, as rings move them. `backward` says that it is part of a backward pass, `host` that
    the tensors are on the host. `line` is the user's.
    """

    kind: str
    group: str = ""
    ranks: int = 0
    times: float = 0.0
    sent: int = 0
    received: int = 0
    backward: bool = False
    host: bool = False
    line: SourceLine | None = None
