"""GAP141."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import is_below

_FILE = "torchmetrics/aggregation.py"


class TorchMetricsNanCheck(WaitRule):
    """A TorchMetrics aggregator (`MeanMetric`, `SumMetric`, …) checks each value for NaN on the CPU.

    ## What waits
    `MeanMetric`, `SumMetric`, `MaxMetric`, `MinMetric`, `CatMetric` and the running ones check in each
    update whether the value or its weight is NaN, and Python needs both answers: two syncs. If there is a
    NaN that should be ignored, the value is selected with a bool mask, which syncs again.

    ## Why it costs
    The usual value is the loss, right after it has been computed. A mean that needs two additions stops
    the CPU twice per step.

    ## Example
    ```python
    mean = torchmetrics.MeanMetric().to(device)
    for step in range(4):
        mean.update(train_step().detach())
    ```

    ## Use instead
    ```python
    mean = gapless.metrics.MeanMetric().to(device)
    for step in range(4):
        mean.update(train_step().detach())
    ```
    It counts NaN on the GPU and reports them with the next reading, and so does TorchMetrics' own metric
    after `unwait(mean)` from `gapless.metrics.torchmetrics`. `nan_strategy="disable"` turns off the
    check; be careful with weights then: in TorchMetrics 1.9, `MeanMetric` ignores its `weight`.

    ## When it is fine
    In evaluation, where an update follows a long forward pass and a NaN must be found immediately.
    """

    code = "GAP141"
    name = "torchmetrics-nan-check"
    priority = 100
    advice = (
        "`unwait(metric)` from `gapless.metrics.torchmetrics` counts NaN on the GPU and reports them "
        "later, and so do the metrics in `gapless.metrics`"
    )
    change = "`unwait(metrics)`, or use `gapless.metrics`"

    def matches(self, site: Site) -> bool:
        return site.mechanism in ("read", "size") and is_below(
            site, "torchmetrics", "_cast_and_nan_check_input", _FILE
        )
