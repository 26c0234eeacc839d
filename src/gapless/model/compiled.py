"""`Compiled`: what torch.compile would make of one callable, determined by compiling it after the run."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine, Stack, user_line

Limit = Literal["", "recompile_limit", "accumulated_recompile_limit"]
Skip = Literal[
    "cpu-input", "scalar-input", "mutated-input", "operator", "copied-out",
    "uncached-memory", "dynamic-shapes", "output-overwritten",
]  # fmt: skip
"""Why a graph, or part of it, runs outside of CUDA graphs, or in several: an input is a CPU tensor, or a
number in one; an input is written in place; an operator cannot be captured; a result is copied to the CPU;
memory is not cached; each new shape is captured anew; or a result is used after the replay that overwrites
it, which PyTorch refuses."""


class GraphBreak(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A place where the compiler ends a graph, `times` times in the compiled calls.

    `kind` is the compiler's own name of the reason (``"Tensor.item()"``), `reason` its explanation, `hints`
    its advice. `stack` is innermost first; its first `inside` lines are compiled code, the others its
    callers. `raises`: compiling fails here, because `fullgraph=True` allows no break.
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
        """Whether the user's own code is compiled there, not only libraries."""
        return any(line.is_user for line in self.stack[: self.inside])


class Recompile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A function that was compiled again, `times` times, because `guard` failed (``"tensor 'x' size mismatch
    at index 0. expected 4, actual 6"``).

    `function` begins at `line`. `calls` are the numbers of the calls that caused it, from 1, `caller` the
    place of the first.
    """

    guard: str
    function: str = ""
    line: SourceLine | None = None
    calls: tuple[int, ...] = ()
    caller: SourceLine | None = None
    times: int = 1


class Outside(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What keeps work out of one CUDA graph under ``mode="reduce-overhead"``: `what`, in a few words;
    `whole`: the whole compiled graph."""

    skip: Skip
    what: str = ""
    line: SourceLine | None = None
    times: int = 1
    whole: bool = False


class KernelCounts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Kernels of one call on the GPU, eager and fused; those of the backward pass separately."""

    eager: int = 0
    fused: int = 0
    eager_backward: int = 0
    fused_backward: int = 0


class Compiled(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One callable that the run compiled: `name` as the user knows it, `line` where it was compiled.

    - `options`: those that differ from torch's defaults (``("fullgraph=True",)``).
    - `calls`: all calls; `signatures`: how many differ; `compiled`: how many were compiled again after the
      run, in order.
    - `graphs`: the resulting graphs; `shapes`: the same, counted once for each set of sizes; `dynamic`: those
      that take sizes as arguments; `scalars`: values read within graphs (``capture_scalar_outputs``).
    - `limit`: the limit on recompilations that was reached, at the line `limited`: from then on it runs
      eagerly.
    - `failed`: why it could not be compiled ("": it was).

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
    launches: KernelCounts | None = None
    failed: str = ""

    @property
    def broken(self) -> int:
        """The number of graph breaks."""
        return sum(graph_break.times for graph_break in self.breaks)

    @property
    def again(self) -> int:
        """The number of recompilations."""
        return sum(recompile.times for recompile in self.recompiles)
