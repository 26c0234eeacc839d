"""GAP514."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import CompiledRule, Hit
from gapless.model.compiled import Compiled, Outside
from gapless.rules._compiled import place, site, which

_WHY = {
    "cpu-input": "`{what}` is on the CPU: what uses it runs outside of the CUDA graph",
    "mutated-input": "`{what}` is written in place: PyTorch skips CUDA graphs for the whole graph",
}
_REMEDIES = {
    "cpu-input": "put `{what}` on the GPU before the call: `{what} = {what}.to(device, non_blocking=True)`",
    "mutated-input": "return the new value in place of writing into `{what}`, or make it a buffer of the "
    "module (`register_buffer`), whose address stays",
}


class CudaGraphSkipped(CompiledRule):
    """`mode="reduce-overhead"` is asked for, and a graph runs without CUDA graphs, or in parts.

    ## What waits
    The GPU, for launches. `mode="reduce-overhead"` captures each graph once and replays it with one launch.
    That needs every input to stay where it is, on the GPU. A graph with a CPU tensor among its inputs is cut
    around what uses it; one that writes into an input that is no parameter or buffer is not captured at all.

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
        why = _WHY[one.skip].format(what=one.what)
        return Hit(
            evidence=(f"{which(compiled)}: {why}", f"it is used at {place(line)}"),
            remedy=_REMEDIES[one.skip].format(what=one.what),
            site=site((line,) if line is not None else ()),
            calls=one.times,
        )
