"""GAP160."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.model.event import METRIC_RESULT


class MetricResultRead(WaitRule):
    """The result of a `gapless.metrics` metric read at once: the CPU waits for what need not be waited for.

    ## What waits
    `update`, `forward` and `compute` of `gapless.metrics` wait for nothing: results are tensors on the GPU.
    `.item()`, `float()`, `print` and `tolist` of such a result wait for all work before it.

    ## Why it costs
    Results are read to be logged, and a log can show them a few steps later. Read in each step, every
    metric of a collection costs one sync.

    ## Example
    ```python
    accuracy = gapless.metrics.classification.MulticlassAccuracy(5).to(device)
    for step in range(4):
        accuracy.update(logits.detach(), y)
        print(accuracy.compute().item())
    ```

    ## Use instead
    ```python
    accuracy = gapless.metrics.classification.MulticlassAccuracy(5)
    scores = gapless.metrics.MetricCollection({"accuracy": accuracy}).to(device)
    printing = scores.every(2, lambda update, values: print(update, values["accuracy"]))
    for step in range(4):
        scores.update(logits.detach(), y)
    printing.finish()  # once, at the end
    ```
    `every` of a collection calls a function every N updates, when the values have arrived. For a single
    result, `reading = accuracy.read()` starts a copy; `reading.ready()` says when it has arrived, and
    `reading.result()` then waits for nothing.

    ## When it is fine
    Once per epoch.
    """

    code = "GAP160"
    name = "metric-result-read"
    priority = 80
    advice = (
        "`reading = metric.read()` starts a copy without waiting, and `reading.result()` has the value a few "
        "steps later; `collection.every(N, log)` passes the values to `log` every N updates, once they have "
        "arrived"
    )
    change = "read metrics with `read()`, or log with `every`"
    reach = "function"

    def matches(self, site: Site) -> bool:
        return site.detail == METRIC_RESULT
