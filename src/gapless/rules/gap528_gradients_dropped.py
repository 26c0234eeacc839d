"""GAP528."""

from __future__ import annotations

from gapless.rules._graphs import FaultRule


class GradientsDropped(FaultRule):
    """Gradients that replays write are set to None, so the optimizer outside the graph does nothing.

    ## What waits
    Nothing. The captured backward pass writes into the `.grad` that existed, or was created, in the
    capture. `zero_grad()` sets `.grad` to None; replays do not set it again.

    ## Why it costs
    `optimizer.step()` skips parameters without a gradient: the model does not change, and there is no error.

    ## Example
    ```python
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        weight.square().sum().backward()
    for step in range(3):
        optimizer.zero_grad()
        g.replay()
        optimizer.step()
    ```

    ## Use instead
    ```python
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        weight.square().sum().backward()
    for step in range(3):
        g.replay()  # it overwrites the gradients: nothing has to be zeroed
        optimizer.step()
    ```

    ## When it is fine
    Never, if the optimizer should step."""

    code = "GAP528"
    name = "gradients-dropped"
    kinds = ("gradients",)
    advice = (
        "call `zero_grad(set_to_none=True)` once, before the capture, not between replays: the captured "
        "backward pass overwrites the gradients"
    )
    change = "do not call `zero_grad()` between replays"
