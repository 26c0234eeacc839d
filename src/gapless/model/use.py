"""`Use`: what a value that the CPU reads is needed for."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

UseKind = Literal[
    "size", "slice", "range", "index", "key", "element", "condition", "stop", "check", "finite", "best",
    "tensor", "accumulator", "append", "dict", "show", "count", "empty", "selection", "numpy", "checkpoint",
    "environment", "timing", "unused", "library", "returned", "stored", "undecided",
]  # fmt: skip
"""What the value is for.

Needed at once:

- ``size``: of a new tensor, of a view or of a split; ``slice``: a slice's bound; ``range``: a loop's length;
- ``index`` of a tensor or an array; ``key`` of a dict or a list; ``element`` of a tensor that a loop walks;
- ``condition``: chooses what runs; ``stop``: ends a loop; ``environment``: an action;
- ``selection``: its rows are computed with; ``empty``: whether a selection has any.

Not needed at once:

- ``check``: an assert or a raise; ``finite``: a check for NaN or infinity; ``best``: the best so far;
- ``tensor``: computed with tensors, or sent back to the GPU; ``numpy``: computed with arrays;
- ``accumulator``: added to a sum; ``append``: to a list; ``dict``: kept in one; ``show``: logged or printed;
- ``count``: only the number of selected elements; ``checkpoint``: saved; ``timing``: to wait before a clock
  is read; ``unused``: nothing.

Not followed: ``library``, the argument of a call; ``returned``, ``stored`` in an attribute; ``undecided``.
"""


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an expression stands in its file: lines from 1, and columns from 0 in bytes, the end excluded."""

    line: int
    end_line: int
    column: int
    end_column: int


class NamedTensors(NamedTuple):
    """The tensors in a function's variables, and in the attributes of its ``self``, by where they are.

    A tensor without dimensions on the CPU is in neither: it computes with any other.
    """

    on_gpu: frozenset[str] = frozenset()
    on_cpu: frozenset[str] = frozenset()


class Use(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One use of a value.

    `text` is the source of what uses it (``x[:, :n]``; for an ``element`` the tensor that is walked over, for
    ``finite`` the one that is checked, if that is known), at `line` of `file` (empty: the file of the read).
    `changes` says that the tensor may change in place later, so that what is kept of it must be a copy.
    `on_gpu` and `on_cpu` are the tensors that `text` names, as far as the run saw where they are.
    """

    kind: UseKind
    line: int
    text: str = ""
    file: str = ""
    changes: bool = False
    on_gpu: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()


UNDECIDED: frozenset[UseKind] = frozenset({"library", "returned", "stored", "undecided"})
"""Kinds that do not say what the value is for."""

NEEDED_AT_ONCE: frozenset[UseKind] = frozenset(
    {
        "size", "slice", "range", "index", "key", "element", "condition", "stop", "environment", "selection",
        "empty",
    }
)  # fmt: skip
"""Kinds of which reading less often is no remedy."""
