"""GAP527."""

from __future__ import annotations

from gapless.rules._graphs import FaultRule


class StateMadeInCapture(FaultRule):
    """An optimizer creates its state inside the capture, so each replay creates it again.

    ## What waits
    Nothing. Momentum and moments are created in the first step, filled with zeros. If that step is captured,
    so are the zeros.

    ## Why it costs
    Each replay starts with zero momentum and at step one: it trains, but worse than it should.

    ## Example
    ```python
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    optimizer = torch.optim.Adam([weight], capturable=True)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        weight.square().sum().backward()
        optimizer.step()
    g.replay()
    ```

    ## Use instead
    ```python
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    optimizer = torch.optim.Adam([weight], capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # three steps of warm-up
        for step in range(3):
            optimizer.zero_grad(set_to_none=True)
            weight.square().sum().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        weight.square().sum().backward()
        optimizer.step()
    g.replay()
    ```

    ## When it is fine
    Never, for an optimizer with momentum.
    """

    code = "GAP527"
    name = "state-made-in-capture"
    kinds = ("made-inside",)
    advice = "run a few steps before the capture, on a side stream: the optimizer then has its state"
    change = "run warm-up steps before the capture"
