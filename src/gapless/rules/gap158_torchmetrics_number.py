"""GAP158."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import is_below


class TorchMetricsNumber(WaitRule):
    """A Python number given to a TorchMetrics metric is copied to the GPU in each update.

    ## What waits
    An aggregator such as `MeanMetric` turns a value or a weight that is a Python number into a tensor with
    `torch.as_tensor(number, device=...)`: a blocking copy from the CPU.

    ## Why it costs
    A typical case is the batch size as weight: a number known on the CPU is sent to the GPU, and the
    CPU waits for four bytes to arrive after everything else in the queue.

    ## Example
    ```python
    mean = torchmetrics.MeanMetric().to(device)
    for step in range(4):
        mean.update(train_step().detach(), weight=8)
    ```

    ## Use instead
    ```python
    mean = torchmetrics.MeanMetric().to(device)
    weight = torch.full((), 8.0, device=device)
    for step in range(4):
        mean.update(train_step().detach(), weight=weight)
    ```
    Create a changing weight on the GPU with a kernel: `torch.full_like(loss, n)`. A value that is known on
    the CPU, such as a time, belongs in a metric on the CPU. The metrics of `gapless.metrics` take numbers
    as arguments of their kernels, and so do TorchMetrics' own after `unwait(mean)`.

    ## When it is fine
    Once per epoch.
    """

    code = "GAP158"
    name = "torchmetrics-number"
    priority = 100
    advice = (
        "pass a tensor created on the GPU (`torch.full_like(value, n)`); the metrics in `gapless.metrics`, "
        "and these after `unwait(metric)`, accept numbers without a copy"
    )
    change = "`unwait(metrics)`, or use `gapless.metrics`"

    def matches(self, site: Site) -> bool:
        return (
            site.mechanism == "h2d"
            and site.detail in ("scalar", "list")
            and is_below(site, "torchmetrics", file="torchmetrics/aggregation.py")
        )
