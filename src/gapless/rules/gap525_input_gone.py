"""GAP525."""

from __future__ import annotations

from gapless.model.graph_fault import GraphFault
from gapless.rules._graphs import FaultRule


class InputGone(FaultRule):
    """Memory that a CUDA graph reads was freed or moved before a replay.

    ## What waits
    Nothing. A graph does not keep its inputs alive: it knows their addresses. The memory of a tensor that
    is no longer referenced goes to the next allocation.

    ## Why it costs
    Replays read what other tensors wrote there, or end with an illegal memory access.

    ## Example
    ```python
    def captured():
        x = torch.ones(4, device="cuda")
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = x * 2
        return g, y


    g, y = captured()
    g.replay()
    ```

    ## Use instead
    ```python
    def captured():
        x = torch.ones(4, device="cuda")
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = x * 2
        return g, x, y


    g, x, y = captured()
    g.replay()
    ```

    ## When it is fine
    Never.
    """

    code = "GAP525"
    name = "input-gone"
    kinds = ("gone",)
    advice = (
        "keep every tensor that the graph reads alive as long as the graph, for example in the same object"
    )
    change = "keep the graph's inputs alive, where they are"

    def remedy(self, fault: GraphFault) -> str:
        if any("resized" in sentence for sentence in fault.told):
            return "allocate the tensor at its maximum size before the capture, and do not resize it"
        return self.advice
