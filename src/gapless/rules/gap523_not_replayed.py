"""GAP523."""

from __future__ import annotations

from gapless.rules._graphs import FaultRule


class NotReplayed(FaultRule):
    """Something happens in the capture of a CUDA graph that no replay does again.

    ## What waits
    Nothing. A graph holds launches of the captured stream and of those that it forks into. Counters in
    Python, tensors in the CPU's memory and work on other streams are done once, while it is recorded.

    ## Why it costs
    What is done with them afterwards sees the state of the capture, in every step.

    ## Example
    ```python
    x = torch.ones(4, device="cuda")
    state = {"steps": 0}
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x * 2
        state["steps"] += 1
    for step in range(3):
        g.replay()
    ```

    ## Use instead
    ```python
    x = torch.ones(4, device="cuda")
    state = {"steps": 0}
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x * 2
    for step in range(3):
        g.replay()
        state["steps"] += 1
    ```

    ## When it is fine
    Where it is meant for the capture alone: a count of captures, a cache that is filled once.
    """

    code = "GAP523"
    name = "not-replayed"
    kinds = ("not-replayed",)
    advice = (
        "do it beside `g.replay()`, or keep it in a tensor on the GPU that the captured stream writes; "
        "other streams join with `side.wait_stream(torch.cuda.current_stream())`"
    )
    change = "do it beside the replay, or on the GPU"
