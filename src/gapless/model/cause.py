"""`Origin`: where the values come from that the CPU waits for at a site."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine

OriginKind = Literal["copied-back", "batch", "unchanged", "refilled", "numpy", "made", "element", "cpu-table"]
"""Where values come from.

- ``copied-back``: a copy to the device sends values that came from the device, by a copy at `Origin.line`;
- ``batch``: a DataLoader yielded them at that line;
- ``unchanged``: the same memory with the same values is copied in every step that was seen;
- ``refilled``: the memory is written in place between the copies;
- ``numpy``: they were made from a NumPy array or a list, shortly after values of the device had left torch at
  `Origin.source`;
- ``made``: a function at that line made them on the CPU;
- ``element``: what is read is an element of a device tensor that a loop at that line walks over, or (without
  a line) one of several that are read in turn;
- ``cpu-table``: what is read is the index into a tensor on the CPU, which was made at that line.
"""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where the values come from that nearly all waits at one site are for.

    `line` is where they were made or copied, `name` the call that did it (``Tensor.cpu``, ``torch.ones``).
    It holds for `calls` waits in `steps` steps after the first. `refilled`: their memory is written in place
    between the copies, whatever the kind. `source` is the line where values of the device probably left
    torch. `certain` is false where the kind was inferred without seeing the values.
    """

    kind: OriginKind
    line: SourceLine | None = None
    name: str = ""
    calls: int = 0
    steps: int = 0
    refilled: bool = False
    source: SourceLine | None = None
    certain: bool = True
