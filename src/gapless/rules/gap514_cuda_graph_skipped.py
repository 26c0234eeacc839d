"""GAP514."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import CompiledRule, Hit
from gapless.model.compiled import Compiled, Outside
from gapless.rules._compiled import compiled_site, describe_compiled, describe_place

_WHY = {
    "cpu-input": "`{what}` is on the CPU: code that uses it runs outside the CUDA graph",
    "scalar-input": "`{what}` is a number in CPU memory: it is copied to the GPU before each replay",
    "mutated-input": "`{what}` is written in place",
    "operator": "{what} cannot be in a CUDA graph, so the graph is split around it",
    "copied-out": "it copies a result to the CPU: the CUDA graph is split there",
    "uncached-memory": "memory is requested from CUDA directly, but CUDA graphs need PyTorch's own pools",
}
_WHOLE = {
    "cpu-input": "`{what}` is on the CPU",
    "operator": "{what} cannot be in a CUDA graph",
    "copied-out": "it copies a result to the CPU",
}
_SKIPPED = ": PyTorch skips CUDA graphs for the whole graph"
_AHEAD = "put `{what}` on the GPU before the call: `{what} = {what}.to(device, non_blocking=True)`"
_REMEDIES = {
    "cpu-input": _AHEAD,
    "scalar-input": "keep `{what}` on the GPU, `torch.tensor(…, device=device)`, and fill it there",
    "mutated-input": "return the new value instead of writing into `{what}`, or make it a buffer of the "
    "module (`register_buffer`), whose address stays the same",
    "operator": "write it with sizes that do not depend on values (`torch.where` for masks and for both "
    "branches of a condition), or move it out of the compiled code",
    "copied-out": "return the tensor as it is, and copy it to the CPU after the call",
    "uncached-memory": "remove `caching_allocator_enable(False)` and `PYTORCH_NO_CUDA_MEMORY_CACHING`",
}


class CudaGraphSkipped(CompiledRule):
    """`mode="reduce-overhead"` is requested, but a graph runs without CUDA graphs, or in parts.

    ## What waits
    The GPU, for launches. `mode="reduce-overhead"` captures each graph once and replays it with one launch.
    That needs every input to stay where it is, on the GPU. A graph is split around code that uses a CPU
    tensor, copies to the CPU, has a size that depends on values, or is a `torch.while_loop`; a graph that
    writes into an input that is not a parameter or buffer, or contains a `torch.cond`, is not captured at
    all. With `backend="cudagraphs"`, or without `graph_partition`, nothing is split, and the whole graph is
    skipped.

    ## Why it costs
    Saving launches is the purpose of `reduce-overhead`. PyTorch reports this once, as "skipping cudagraphs
    due to …", in a log that is off unless you set `TORCH_LOGS=perf_hints`.

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
    Where the graph is so long that its launches do not matter. Parameters and buffers may be written:
    their addresses stay the same."""

    code = "GAP514"
    name = "cuda-graph-skipped"
    advice = (
        "pass only GPU tensors to compiled code with CUDA graphs, and return new values instead of writing "
        "into inputs"
    )
    change = "keep inputs on the GPU and unwritten"

    def of_compiled(self, compiled: Compiled) -> Iterable[Hit]:
        for outside in compiled.outside:
            if outside.skip in _WHY:
                yield self._hit(compiled, outside)

    def _hit(self, compiled: Compiled, outside: Outside) -> Hit:
        line = outside.line or compiled.line
        said = _WHOLE.get(outside.skip, _WHY[outside.skip]) if outside.whole else _WHY[outside.skip]
        why = said.format(what=outside.what) + (_SKIPPED if outside.whole else "")
        return Hit(
            evidence=(f"{describe_compiled(compiled)}: {why}", f"it is used at {describe_place(line)}"),
            remedy=_REMEDIES[outside.skip].format(what=outside.what),
            site=compiled_site((line,) if line is not None else ()),
            calls=outside.times,
        )
