"""GAP512."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import CompiledRule, Hit
from gapless.model.compiled import Compiled, Recompile
from gapless.model.wording import count
from gapless.rules._compiled import (
    advise_guard,
    compiled_site,
    describe_compiled,
    describe_guard,
    describe_place,
)

_MIN_RECOMPILATIONS = 2
"""A single recompilation is how the compiler learns that a size varies, or that there is an evaluation."""
_MAX_CALLS_NAMED = 4
"""Numbers of calls named; the others are counted."""


class Recompiled(CompiledRule):
    """A compiled function is recompiled again and again, because what it was compiled for keeps changing.

    ## What waits
    Everything. Compiled code is valid for the inputs it was compiled for: sizes, numbers, flags, lengths of
    lists, attributes of modules. A guard checks each of them at each call, and if one fails, the call first
    recompiles, which takes seconds to minutes.

    ## Why it costs
    A number that changes in each step (a counter, a learning rate, a value read from the GPU) recompiles
    the function in each step, until the limit of eight is reached and it runs uncompiled from then on.

    ## Example
    ```python
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls


    net = torch.compile(Net())
    for step in range(4):
        net(torch.rand(8, device="cuda"))
    ```

    ## Use instead
    ```python
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x * self.calls


    net = torch.compile(Net().cuda())
    for step in range(4):
        net(torch.rand(8, device="cuda"))
    ```

    ## When it is fine
    Once for a second kind of call: an evaluation without gradients, a size that turns out to vary. Such
    single recompilations are listed in the report's table, but are not findings. Nor are the first calls of
    code that is compiled several times, such as an optimizer that compiles its update for each parameter.
    """

    code = "GAP512"
    name = "recompiled"
    advice = (
        "turn changing values into tensors, mark varying sizes with `torch._dynamo.mark_dynamic`, and keep "
        "counters and logged numbers outside compiled code"
    )
    change = "keep guarded values the same between calls"

    def of_compiled(self, compiled: Compiled) -> Iterable[Hit]:
        for recompile in compiled.recompiles:
            # First calls of what is compiled several times over, each time for one use, repeat nothing.
            if (
                recompile.times >= _MIN_RECOMPILATIONS
                and max(recompile.calls, default=_MIN_RECOMPILATIONS) > 1
            ):
                yield self._hit(compiled, recompile)

    def _hit(self, compiled: Compiled, recompile: Recompile) -> Hit:
        remedy, change = advise_guard(recompile, compiled)
        shown = ", ".join(map(str, recompile.calls[:_MAX_CALLS_NAMED]))
        more = (
            f" and {len(recompile.calls) - _MAX_CALLS_NAMED} more"
            if len(recompile.calls) > _MAX_CALLS_NAMED
            else ""
        )
        calls = f"by {'call' if len(recompile.calls) == 1 else 'calls'} {shown}{more}"
        user = recompile.line is not None and recompile.line.is_user
        stack = tuple(
            line for line in (recompile.line if user else None, recompile.caller) if line is not None
        )
        evidence = (
            f"{describe_compiled(compiled)} was recompiled {_describe_times(recompile, compiled)}, "
            f"{calls}: {describe_guard(recompile.guard)}",
            f"the first such call: {describe_place(recompile.caller)}"
            if recompile.caller is not None
            else "",
        )
        return Hit(
            evidence=tuple(text for text in evidence if text),
            remedy=remedy,
            change=change,
            site=compiled_site(stack),
            calls=recompile.times,
        )


def _describe_times(recompile: Recompile, compiled: Compiled) -> str:
    """Return ``3 times``, or how many of the recompilations this guard caused."""
    if recompile.times == compiled.again:
        return count(recompile.times, "time")
    return f"for this {count(recompile.times, 'time')} of {compiled.again}"
