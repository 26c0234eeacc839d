"""GAP513."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import CompiledRule, Hit
from gapless.model.compiled import Compiled
from gapless.model.wording import count
from gapless.rules._compiled import (
    advise_guard,
    compiled_site,
    describe_compiled,
    describe_guard,
    describe_place,
)


class RecompileLimit(CompiledRule):
    """A function was recompiled so often that the compiler gave up: it runs uncompiled from then on.

    ## What waits
    The GPU, for launches. After eight compilations of one function (`torch._dynamo.config.recompile_limit`)
    PyTorch stops compiling it, with one warning in the log, and runs it eagerly.

    ## Why it costs
    All the time spent on compiling is lost, and so are the savings of compiled code: the function runs
    eagerly for the rest of the run.

    ## Example
    ```python
    compiled = torch.compile(torch.nn.Linear(8, 8).cuda(), dynamic=False)
    for length in range(1, 12):
        compiled(torch.rand(length, 8, device="cuda"))
    ```

    ## Use instead
    ```python
    compiled = torch.compile(torch.nn.Linear(8, 8).cuda())
    for length in range(2, 12):
        batch = torch.rand(length, 8, device="cuda")
        torch._dynamo.mark_dynamic(batch, 0)
        compiled(batch)
    ```

    ## When it is fine
    Never: either make the function compile for its inputs, or do not compile it."""

    code = "GAP513"
    name = "recompile-limit"
    advice = (
        "make one compiled version serve all calls: mark varying sizes with `torch._dynamo.mark_dynamic`, "
        "pad to a few sizes, turn changing numbers into tensors"
    )
    change = "make one compiled version serve all calls"

    def of_compiled(self, compiled: Compiled) -> Iterable[Hit]:
        if not compiled.limit:
            return
        often = max(compiled.recompiles, key=lambda recompile: recompile.times, default=None)
        remedy = advise_guard(often, compiled)[0] if often is not None else self.advice
        line = compiled.limited
        user = line if line is not None and line.is_user else None
        caller = often.caller if often is not None else None
        evidence = (
            f"{describe_compiled(compiled)} reached `torch._dynamo.config.{compiled.limit}` after "
            f"{count(compiled.again, 'recompilation')}: it runs eagerly from then on",
            f"most often {describe_guard(often.guard)}" if often is not None else "",
            f"called at {describe_place(caller)}" if caller is not None else "",
        )
        stack = tuple(frame for frame in (user, caller, compiled.line) if frame is not None)
        yield Hit(evidence=tuple(text for text in evidence if text), remedy=remedy, site=compiled_site(stack))
