"""GAP157."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import is_below


class TorchMetricsBincount(WaitRule):
    """A TorchMetrics metric counts with `bincount`, which reads the range of the values on the CPU.

    ## What waits
    Macro-averaged accuracy, precision, recall and F1, confusion matrices, Jaccard index, Cohen's kappa and
    curves with fixed thresholds count pairs of label and prediction with `torch.bincount`. On CUDA it reads
    the smallest and the largest value on the CPU: two syncs per update, and no option of the metric turns
    them off.

    ## Why it costs
    Every metric of this kind does this separately, right after the forward pass. For `C` classes it
    also fills a matrix of `C` by `C` counts where the diagonal and two sums would be enough.

    ## Example
    ```python
    recall = torchmetrics.classification.MulticlassRecall(5, average="macro", validate_args=False).to(device)
    for step in range(4):
        recall.update(logits.detach(), y)
    ```

    ## Use instead
    ```python
    recall = gapless.metrics.classification.MulticlassRecall(5, average="macro").to(device)
    for step in range(4):
        recall.update(logits.detach(), y)
    ```
    It counts true positives, labels and predictions per class with `scatter_add_`, at a fixed size, and so
    does TorchMetrics' own metric after `unwait(recall)` from `gapless.metrics.torchmetrics`. With
    `average="micro"` TorchMetrics itself needs no counts and does not wait.

    ## When it is fine
    In evaluation.
    """

    code = "GAP157"
    name = "torchmetrics-bincount"
    priority = 100
    advice = (
        "the metric of this name in `gapless.metrics` counts at a fixed size, and so does this one after "
        "`unwait(metric)` from `gapless.metrics.torchmetrics`"
    )
    change = "`unwait(metrics)`, or use `gapless.metrics`"

    def matches(self, site: Site) -> bool:
        return any(is_below(site, "torchmetrics", name) for name in ("_bincount", "_flexible_bincount"))
