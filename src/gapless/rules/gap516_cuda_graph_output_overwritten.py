"""GAP516."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import CompiledRule, Hit
from gapless.model.compiled import Compiled
from gapless.rules._compiled import compiled_site, describe_compiled, describe_place


class CudaGraphOutputOverwritten(CompiledRule):
    """The result of a compiled CUDA graph is used after a later call has reused its memory.

    ## What waits
    Nothing: on a GPU the script ends there, with "accessing tensor output of CUDAGraphs that has been
    overwritten by a subsequent run".

    ## Why it costs
    `mode="reduce-overhead"` returns results in memory that each replay reuses. A loss kept in a list for
    the end of the epoch, or a hidden state passed from one batch to the next, is overwritten by then;
    `detach()` shares its memory.

    ## Example
    ```python
    @torch.compile(mode="reduce-overhead")
    def scored(x):
        return x.square().mean()


    scores = [scored(torch.rand(8, device="cuda")) for _ in range(4)]
    mean = torch.stack(scores).mean()
    ```

    ## Use instead
    ```python
    @torch.compile(mode="reduce-overhead")
    def scored(x):
        return x.square().mean()


    scores = [scored(torch.rand(8, device="cuda")).clone() for _ in range(4)]
    mean = torch.stack(scores).mean()
    ```

    ## When it is fine
    Never. Results may be kept until the next call of any compiled CUDA graph, or, with
    `torch.compiler.cudagraph_mark_step_begin()`, until the first call after the next mark."""

    code = "GAP516"
    name = "cuda-graph-output-overwritten"
    advice = "clone what you keep, outside the compiled function: `kept = result.detach().clone()`"
    change = "clone results of a compiled CUDA graph that you keep"

    def of_compiled(self, compiled: Compiled) -> Iterable[Hit]:
        for outside in compiled.outside:
            if outside.skip == "output-overwritten":
                yield Hit(
                    evidence=(
                        f"a result of {describe_compiled(compiled)} is used at "
                        f"{describe_place(outside.line)} after a later call "
                        "has reused its memory",
                        'on a GPU PyTorch raises "accessing tensor output of CUDAGraphs that has been '
                        'overwritten by a subsequent run"',
                    ),
                    remedy=self.advice,
                    site=compiled_site((outside.line,) if outside.line is not None else ()),
                    calls=outside.times,
                )
