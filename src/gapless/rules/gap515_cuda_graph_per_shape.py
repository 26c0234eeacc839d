"""GAP515."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import CompiledRule, Hit
from gapless.model.compiled import Compiled
from gapless.model.wording import count
from gapless.rules._compiled import compiled_site, describe_compiled

_MIN_CAPTURES = 3
"""Two sizes are normal: those of a full batch and of the last one."""


class CudaGraphPerShape(CompiledRule):
    """`mode="reduce-overhead"` captures a CUDA graph for each new size of its inputs.

    ## What waits
    The step with the new size. A CUDA graph has fixed sizes. A compiled graph that accepts any size
    (`dynamic=True`, or once a second size was seen) is captured again for each new size.

    ## Why it costs
    Capturing runs the graph two more times and keeps its memory for good. With batches padded to their own
    longest sequence, nearly every step captures, and the savings of CUDA graphs are spent on capturing
    them.

    ## Example
    ```python
    @torch.compile(mode="reduce-overhead")
    def scores(x):
        return (x @ x.T).softmax(-1)


    for length in (8, 9, 10, 11):
        scores(torch.rand(length, 16, device="cuda"))
    ```

    ## Use instead
    ```python
    @torch.compile(mode="reduce-overhead")
    def scores(x):
        return (x @ x.T).softmax(-1)


    for length in (8, 9, 10, 11):
        padded = torch.zeros(16, 16, device="cuda")
        padded[:length] = torch.rand(length, 16, device="cuda")
        scores(padded)
    ```
    `gapless.loading.BucketBatchSampler` limits the number of sizes where padding to a single one would waste
    too much.

    ## When it is fine
    A few recurring sizes: each is captured once. Fewer than three are not reported."""

    code = "GAP515"
    name = "cuda-graph-per-shape"
    advice = (
        "pad to one size or a few (multiples of 64, `gapless.loading.BucketBatchSampler`), so that "
        "captured graphs are reused; `torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True` "
        "skips capturing for graphs with dynamic sizes"
    )
    change = "pad inputs to a few sizes"

    def of_compiled(self, compiled: Compiled) -> Iterable[Hit]:
        sizes = [outside for outside in compiled.outside if outside.skip == "dynamic-shapes"]
        captures = compiled.shapes
        if not sizes or captures < _MIN_CAPTURES + compiled.graphs - 1:
            return
        line = sizes[0].line or compiled.line
        calls, graphs = count(compiled.compiled, "call"), count(compiled.graphs, "compiled graph")
        evidence = f"{describe_compiled(compiled)}: {count(captures, 'CUDA graph')} captured in {calls}"
        yield Hit(
            evidence=(f"{evidence}, one for each set of sizes of {graphs}",),
            remedy=self.advice,
            site=compiled_site((line,) if line is not None else ()),
            calls=captures,
        )
