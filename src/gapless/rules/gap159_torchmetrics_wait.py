"""GAP159."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import deciding_frame, is_below, short_path


class TorchMetricsWait(WaitRule):
    """A TorchMetrics metric waits inside `update`, `compute` or its synchronization between ranks.

    ## What waits
    Several things, which the finding's frames distinguish: `ignore_index` selects with a bool mask;
    metrics that keep all predictions search for distinct values in `compute`; curves and areas compute
    class by class with reads in between; retrieval metrics split the data by query; and gathering states
    of unequal length between ranks reads their sizes.

    ## Why it costs
    In `update` this happens in each step. In `compute` a single call can sync dozens of times, once per
    class or query, which matters if `forward` or a logger calls it in each step.

    ## Example
    ```python
    accuracy = torchmetrics.classification.MulticlassAccuracy(
        5, average="micro", ignore_index=0, validate_args=False
    ).to(device)
    accuracy.update(logits.detach(), y)
    ```

    ## Use instead
    ```python
    correct = torch.zeros((), device=device)
    counted = torch.zeros((), device=device)
    valid = y != 0
    correct += ((logits.argmax(dim=1) == y) & valid).sum()
    counted += valid.sum()
    ```
    Call `compute` only where you use the result, and `update` instead of `forward` in the loop. For
    curves, give `thresholds=` a number: the state then has a fixed size.

    ## When it is fine
    `compute` once per epoch.
    """

    code = "GAP159"
    name = "torchmetrics-wait"
    priority = 99
    advice = (
        "call `update` instead of `forward` in the loop, and `compute` only where you use the result; give "
        "curves a number of `thresholds`"
    )
    change = "`unwait(metrics)`, or use `gapless.metrics`"

    def matches(self, site: Site) -> bool:
        frame = deciding_frame(site)
        moved = is_below(site, "torchmetrics", "_apply", "torchmetrics/metric.py")  # `metric.to(device)`
        return frame is not None and frame.library == "torchmetrics" and not moved

    def remedy(self, site: Site) -> str:
        frame = deciding_frame(site)
        where = f" (it waits at {short_path(frame)}, {frame.function})" if frame is not None else ""
        if is_below(site, "torchmetrics", "gather_all_tensors"):
            return f"synchronize once per epoch: use `sync_on_compute`, not `dist_sync_on_step`{where}"
        if site.mechanism == "size" and is_below(site, "torchmetrics", "update"):
            return (
                "`ignore_index` selects with a bool mask: count with the mask itself, as "
                f"`((prediction == target) & valid).sum()`{where}"
            )
        if is_below(site, "torchmetrics", "update") and not is_below(site, "torchmetrics", "forward"):
            return (
                "this metric's own `update` syncs; the metric of that name in `gapless.metrics`, if there "
                "is one, does not, and `unwait(metric)` from `gapless.metrics.torchmetrics` reports what "
                "it can change" + where
            )
        return f"{self.advice}{where}"

    def known_change(self, site: Site) -> str:
        if is_below(site, "torchmetrics", "gather_all_tensors"):
            return "synchronize metrics between ranks once per epoch"
        return ""
