"""GAP521."""

from __future__ import annotations

from gapless.model.graph_fault import GraphFault
from gapless.rules._graphs import FaultRule


class InputRebound(FaultRule):
    """The variable of a graph's input gets a new tensor; the graph goes on reading the old one.

    ## What waits
    Nothing. A graph holds addresses, not variables: `x = batch.cuda()` makes a tensor somewhere else, and the
    replay reads the batch of the capture again.

    ## Why it costs
    Every replay computes on the same old values, without an error: the loss stands still.

    ## Example
    ```python
    x = torch.zeros(4, 8, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x * 2
    for step in range(3):
        x = torch.full((4, 8), float(step), device="cuda")
        g.replay()
    ```

    ## Use instead
    ```python
    x = torch.zeros(4, 8, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x * 2
    for step in range(3):
        x.copy_(torch.full((4, 8), float(step), device="cuda"))
        g.replay()
    ```

    ## When it is fine
    Never, where the graph is meant to see the new values.
    """

    code = "GAP521"
    name = "input-rebound"
    kinds = ("rebound",)
    advice = (
        "copy into the tensor that the graph was captured with: `static_x.copy_(batch, non_blocking=True)`"
    )
    change = "copy into the graph's input instead of rebinding it"

    def remedy(self, fault: GraphFault) -> str:
        return (
            f"write `{fault.what}.copy_(...)` where `{fault.what}` gets a new tensor: the graph reads the "
            "memory that it was captured with"
        )
