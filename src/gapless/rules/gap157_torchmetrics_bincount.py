"""GAP157."""

from __future__ import annotations

from gapless.model import Rule, Site
from gapless.rules._places import below


class TorchMetricsBincount(Rule):
    """A TorchMetrics metric counts with `bincount`, which reads the range of the values on the host.

    ## What waits
    Macro-averaged accuracy, precision, recall and F1, confusion matrices, Jaccard index, Cohen's kappa and
    curves with fixed thresholds count pairs of label and prediction with `torch.bincount`. On CUDA it reads
    the smallest and the largest value on the host: two waits per update, and no option of the metric turns
    them off.

    ## Why it costs
    Every metric of this kind does it by itself, right behind the forward pass. For `C` classes it also
    fills a matrix of `C` by `C` counts where the diagonal and two sums would do.

    ## Example
    ```python
    recall = torchmetrics.classification.MulticlassRecall(5, average="macro", validate_args=False).to(device)
    for step in range(4):
        recall.update(logits.detach(), y)
    ```

    ## Use instead
    ```python
    correct = torch.zeros(5, device=device, dtype=torch.long)
    present = torch.zeros(5, device=device, dtype=torch.long)
    for step in range(4):
        hit = (logits.argmax(dim=1) == y).long()
        correct.scatter_add_(0, y, hit)
        present.scatter_add_(0, y, torch.ones_like(y))
    recall = (correct / present.clamp_min(1))[present > 0].mean()  # once, at the end: this selection waits
    ```
    True positives, labels and predictions per class are three `scatter_add_` of fixed size, and precision,
    recall, F1 and macro accuracy follow from them. With `average="micro"` TorchMetrics itself needs no
    counts and does not wait.

    ## When it is fine
    In evaluation.
    """

    code = "GAP157"
    name = "torchmetrics-bincount"
    priority = 100
    advice = (
        '`average="micro"` needs no counts; else count true positives, labels and predictions per class '
        "yourself with `scatter_add_`, which has a fixed size"
    )

    def matches(self, site: Site) -> bool:
        return any(below(site, "torchmetrics", name) for name in ("_bincount", "_flexible_bincount"))
