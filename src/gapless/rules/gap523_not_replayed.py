"""GAP523."""

from __future__ import annotations

from gapless.rules._graphs import FaultRule


class NotReplayed(FaultRule):
    """Something happens during the capture of a CUDA graph that no replay repeats.

    ## What waits
    Nothing. A graph holds the launches of the captured stream and of streams forked from it. Python
    counters, tensors in CPU memory and work on other streams run once, during the recording.

    ## Why it costs
    Code that uses them afterwards sees the state at the capture, in every step.

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
    Where it is meant only for the capture: a capture counter, a cache that is filled once."""

    code = "GAP523"
    name = "not-replayed"
    kinds = ("not-replayed",)
    advice = (
        "do it next to `g.replay()`, or keep it in a GPU tensor that the captured stream writes; other "
        "streams join with `side.wait_stream(torch.cuda.current_stream())`"
    )
    change = "do it next to the replay, or on the GPU"
