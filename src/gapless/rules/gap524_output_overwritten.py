"""GAP524."""

from __future__ import annotations

from gapless.model.graph_fault import GraphFault
from gapless.rules._graphs import FaultRule


class OutputOverwritten(FaultRule):
    """An output of a CUDA graph is kept over several replays, or read before the first.

    ## What waits
    Nothing. The output of a graph is one piece of memory that each replay overwrites. The capture itself
    computes nothing.

    ## Why it costs
    A list of outputs holds the last one many times; before the first replay it holds arbitrary data.

    ## Example
    ```python
    x = torch.zeros(1, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x + 1
    outputs = []
    for step in range(3):
        x.fill_(step)
        g.replay()
        outputs.append(y)
    total = torch.cat(outputs).sum()
    ```

    ## Use instead
    ```python
    x = torch.zeros(1, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x + 1
    outputs = []
    for step in range(3):
        x.fill_(step)
        g.replay()
        outputs.append(y.clone())
    total = torch.cat(outputs).sum()
    ```

    ## When it is fine
    Where you need only the last value."""

    code = "GAP524"
    name = "output-overwritten"
    kinds = ("output",)
    advice = "copy an output before the next replay: `outputs.append(y.clone())`"
    change = "clone the output before the next replay"

    def remedy(self, fault: GraphFault) -> str:
        if any("no replay" in sentence for sentence in fault.told):
            return "call `g.replay()` before the output is read: the capture only records"
        return self.advice

    def known_change(self, fault: GraphFault) -> str:
        return (
            "replay before the output is read"
            if any("no replay" in sentence for sentence in fault.told)
            else ""
        )
