"""GAP514."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import CompiledRule, Hit
from gapless.model.compiled import Compiled, Outside
from gapless.rules._compiled import place, site, which

_WHY = {
    "cpu-input": "`{what}` is on the CPU: what uses it runs outside of the CUDA graph",
    "scalar-input": "`{what}` is a number in the CPU's memory: it is copied to the GPU before each replay",
    "mutated-input": "`{what}` is written in place",
    "operator": "{what} cannot be in a CUDA graph, which is cut around it",
    "copied-out": "a result is copied to the CPU inside of it: the CUDA graph is cut there",
    "uncached-memory": "memory is asked from CUDA directly, and CUDA graphs want PyTorch's own pools",
}
_WHOLE = {
    "cpu-input": "`{what}` is on the CPU",
    "operator": "{what} cannot be in a CUDA graph",
    "copied-out": "a result is copied to the CPU inside of it",
}
_SKIPPED = ": PyTorch skips CUDA graphs for the whole graph"
_AHEAD = "put `{what}` on the GPU before the call: `{what} = {what}.to(device, non_blocking=True)`"
_REMEDIES = {
    "cpu-input": _AHEAD,
    "scalar-input": "keep `{what}` on the GPU, `torch.tensor(…, device=device)`, and fill it there",
    "mutated-input": "return the new value in place of writing into `{what}`, or make it a buffer of the "
    "module (`register_buffer`), whose address stays",
    "operator": "write it with sizes that do not depend on values (`torch.where` for masks and for both "
    "branches of a condition), or take it out of what is compiled",
    "copied-out": "return the tensor as it is, and copy it to the CPU behind the call",
    "uncached-memory": "leave out `caching_allocator_enable(False)` and `PYTORCH_NO_CUDA_MEMORY_CACHING`",
}


class CudaGraphSkipped(CompiledRule):
    """`mode="reduce-overhead"` is asked for, and a graph runs without CUDA graphs, or in parts.

    ## What waits
    The GPU, for launches. `mode="reduce-overhead"` captures each graph once and replays it with one launch.
    That needs every input to stay where it is, on the GPU. A graph is cut around what uses a CPU tensor,
    copies to the CPU, has a size that depends on values, or is a `torch.while_loop`; one that writes into an
    input that is no parameter or buffer, or holds a `torch.cond`, is not captured at all. With
    `backend="cudagraphs"`, or without `graph_partition`, nothing is cut, and all of it is skipped.

    ## Why it costs
    Launches are what `reduce-overhead` was to save. PyTorch says so once, as "skipping cudagraphs due to …",
    in a log that is off unless `TORCH_LOGS=perf_hints` asks for it.

    ## Example
    ```python
    @torch.compile(mode="reduce-overhead")
    def counted(x, total):
        total.add_(x.sum())
        return x * 2


    total = torch.zeros((), device="cuda")
    for step in range(3):
        counted(torch.rand(8, device="cuda"), total)
    ```

    ## Use instead
    ```python
    @torch.compile(mode="reduce-overhead")
    def counted(x, total):
        return x * 2, total + x.sum()


    total = torch.zeros((), device="cuda")
    for step in range(3):
        y, total = counted(torch.rand(8, device="cuda"), total.clone())
    ```

    ## When it is fine
    Where the graph is long enough for its launches not to matter. Parameters and buffers may be written:
    their addresses stay.
    """

    code = "GAP514"
    name = "cuda-graph-skipped"
    advice = (
        "give compiled code with CUDA graphs tensors on the GPU alone, and return new values in place of "
        "writing into inputs"
    )
    change = "keep inputs on the GPU and unwritten"

    def of_compiled(self, compiled: Compiled) -> Iterable[Hit]:
        for one in compiled.outside:
            if one.skip in _WHY:
                yield self._hit(compiled, one)

    def _hit(self, compiled: Compiled, one: Outside) -> Hit:
        line = one.line or compiled.line
        said = _WHOLE.get(one.skip, _WHY[one.skip]) if one.whole else _WHY[one.skip]
        why = said.format(what=one.what) + (_SKIPPED if one.whole else "")
        return Hit(
            evidence=(f"{which(compiled)}: {why}", f"it is used at {place(line)}"),
            remedy=_REMEDIES[one.skip].format(what=one.what),
            site=site((line,) if line is not None else ()),
            calls=one.times,
        )
