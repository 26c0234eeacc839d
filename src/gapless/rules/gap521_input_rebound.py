"""GAP521."""

from __future__ import annotations

from gapless.model.graph_fault import GraphFault
from gapless.rules._graphs import FaultRule


class InputRebound(FaultRule):
    """The variable of a graph's input is assigned a new tensor; the graph keeps reading the old one.

    ## What waits
    Nothing. A graph holds addresses, not variables: `x = batch.cuda()` creates a tensor at another address,
    and the replay reads the batch of the capture again.

    ## Why it costs
    Every replay computes with the same old values, without an error: the loss does not change.

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
    Never, if the graph should see the new values."""

    code = "GAP521"
    name = "input-rebound"
    kinds = ("rebound",)
    advice = (
        "copy into the tensor that the graph was captured with: `static_x.copy_(batch, non_blocking=True)`"
    )
    change = "copy into the graph's input instead of rebinding it"

    def remedy(self, fault: GraphFault) -> str:
        return (
            f"write `{fault.what}.copy_(...)` instead of assigning a new tensor to `{fault.what}`: the "
            "graph reads the memory it was captured with"
        )
