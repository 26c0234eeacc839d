"""`Compiled`: what torch.compile would make of one callable, found by compiling it after the run."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine, Stack, user_line

Limit = Literal["", "recompile_limit", "accumulated_recompile_limit"]
Skip = Literal[
    "cpu-input", "scalar-input", "mutated-input", "operator", "copied-out",
    "uncached-memory", "dynamic-shapes", "output-overwritten",
]  # fmt: skip
"""Why a graph, or part of it, runs outside of CUDA graphs, or in more of them than one: a CPU tensor goes in,
or a number in one; an input is written in place; an operator cannot be captured; a
result is copied to the CPU; memory is not cached; each new shape is captured
anew; or a result is used after the replay that overwrites it, which PyTorch refuses."""


class GraphBreak(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A place where the compiler ends a graph, `times` of them in the calls that were compiled.

    `kind` is the compiler's own name of the reason (``"Tensor.item()"``), `reason` its explanation and
    `hints` its advice. `stack` is innermost first; its first `inside` lines are of the compiled code, the
    others of what calls it. With `raises`, compiling fails here: `fullgraph=True` allows none.
    """

    kind: str
    reason: str = ""
    hints: tuple[str, ...] = ()
    stack: Stack = ()
    inside: int = 0
    times: int = 1
    raises: bool = False

    @property
    def line(self) -> SourceLine | None:
        """The user's line, if there is one."""
        return user_line(self.stack)

    @property
    def is_users(self) -> bool:
        """Whether a line of the user's own is compiled there, and not only code of libraries."""
        return any(line.is_user for line in self.stack[: self.inside])


class Recompile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A function that was compiled again, `times` times, as `guard` had failed (``"tensor 'x' size mismatch
    at index 0. expected 4, actual 6"``).

    `function` begins at `line`. `calls` are the numbers of the calls that caused it, from 1, and `caller` is
    where the first of them was made.
    """

    guard: str
    function: str = ""
    line: SourceLine | None = None
    calls: tuple[int, ...] = ()
    caller: SourceLine | None = None
    times: int = 1


class Outside(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What keeps work from one CUDA graph under ``mode="reduce-overhead"``: `what` it is, in a few words, and
    whether it keeps out the `whole` compiled graph."""

    skip: Skip
    what: str = ""
    line: SourceLine | None = None
    times: int = 1
    whole: bool = False


class Launches(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Kernels of one call on the GPU: eagerly, and as they would be fused; the backward pass apart."""

    eager: int = 0
    fused: int = 0
    eager_backward: int = 0
    fused_backward: int = 0


class Compiled(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One callable that the run compiled: `name` as the user knows it, `line` where it was compiled.

    `options` are those that differ from torch's own (``("fullgraph=True",)``). Of `calls` calls `signatures`
    differ, and `compiled` were compiled again after the run, in order, which made `graphs` graphs: `shapes`,
    if each counts once for each set of sizes that it ran with. `dynamic` of them take sizes as arguments, and
    `scalars` values are read within graphs (``capture_scalar_outputs``). `limit` is the limit on
    recompilations that was reached: from then on it runs eagerly. `failed` says why it could not be compiled.

    >>> Compiled(name="Net", graphs=3, breaks=(GraphBreak(kind="Tensor.item()", times=2),)).broken
    2
    """

    name: str
    line: SourceLine | None = None
    options: tuple[str, ...] = ()
    calls: int = 0
    signatures: int = 0
    compiled: int = 0
    graphs: int = 0
    shapes: int = 0
    dynamic: int = 0
    scalars: int = 0
    breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    outside: tuple[Outside, ...] = ()
    limit: Limit = ""
    limited: SourceLine | None = None
    launches: Launches | None = None
    failed: str = ""

    @property
    def broken(self) -> int:
        """The number of graph breaks."""
        return sum(graph_break.times for graph_break in self.breaks)

    @property
    def again(self) -> int:
        """The number of recompilations."""
        return sum(recompile.times for recompile in self.recompiles)
