"""GAP522."""

from __future__ import annotations

from gapless.model.graph_fault import GraphFault
from gapless.rules._graphs import FaultRule


class NumberFrozen(FaultRule):
    """A number that was in Python, or in CPU memory, during the capture has another value at a replay.

    ## What waits
    Nothing. Python numbers, settings of optimizers and modules, tensors in CPU memory and Python
    random numbers become constants in the recorded kernels.

    ## Why it costs
    A learning rate that a scheduler lowers stays the same, a step counter does not advance, a "random"
    choice is the same in each step: the results differ from those without the graph, and there is no error.

    ## Example
    ```python
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    x = torch.randn(4, 8, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x).sum().backward()
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        model(x).sum().backward()
        optimizer.step()
    for step in range(3):
        g.replay()
        schedule.step()
    ```

    ## Use instead
    ```python
    model = torch.nn.Linear(8, 8).cuda()
    rate = torch.tensor(0.1, device="cuda")  # a tensor is read at each replay
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    x = torch.randn(4, 8, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x).sum().backward()
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        model(x).sum().backward()
        optimizer.step()
    for step in range(3):
        g.replay()
        schedule.step()
    ```

    ## When it is fine
    Where the number does not matter to what the graph computes.
    """

    code = "GAP522"
    name = "number-frozen"
    kinds = ("frozen",)
    advice = (
        "keep changing values in a GPU tensor created before the capture, and update it between replays "
        "with `.fill_()` or `.copy_()`"
    )
    change = "keep the number in a tensor on the GPU"

    def remedy(self, fault: GraphFault) -> str:
        if "'lr'" in fault.what:
            return (
                "give the optimizer its learning rate as a tensor on the GPU: `lr=torch.tensor(0.1, "
                'device="cuda")` with `capturable=True` (SGD: `fused=True`); schedulers update it, and '
                "replays read it"
            )
        if fault.what.endswith(".training"):
            return "capture one graph for training and one for evaluation, and replay the matching one"
        return self.advice
