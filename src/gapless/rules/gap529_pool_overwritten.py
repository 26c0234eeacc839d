"""GAP529."""

from __future__ import annotations

from gapless.rules._graphs import FaultRule


class PoolOverwritten(FaultRule):
    """Graphs share a memory pool, and one is replayed while an output of another is still needed.

    ## What waits
    Nothing. Memory that an earlier capture no longer used was given to a later capture of the same pool. A
    replay of the earlier graph writes there again.

    ## Why it costs
    The output of the later graph is overwritten with intermediate values of the earlier one.

    ## Example
    ```python
    x = torch.ones(1000, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        a = (x * 3) + 5
    with torch.cuda.graph(second, pool=first.pool()):
        b = x * x
    second.replay()
    first.replay()
    total = a + b
    ```

    ## Use instead
    ```python
    x = torch.ones(1000, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        a = (x * 3) + 5
    with torch.cuda.graph(second, pool=first.pool()):
        b = x * x
    first.replay()
    second.replay()  # in the order of the captures
    total = a + b
    ```

    ## When it is fine
    Never.
    """

    code = "GAP529"
    name = "pool-overwritten"
    kinds = ("order",)
    advice = (
        "replay graphs that share a pool in the order of their captures, use an output before the next "
        "of them is replayed, or give each its own pool"
    )
    change = "replay in the order of the captures"
