"""`Traffic`: what a rank sends and receives in a training step."""

from __future__ import annotations

import msgspec

from gapless.model.source import SourceLine


class Traffic(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The collectives of one kind, in one group, at one line, per training step.

    `kind` is ``all_reduce``, ``all_gather``, ``send``, …; `group` names the participants, `ranks` of them, or
    the peer of a send or receive. `times` is their number, `sent` and `received` the bytes that this rank
    transfers, with ring algorithms. `backward`: part of a backward pass; `host`: the tensors are on the host.
    `line` is the user's.
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
