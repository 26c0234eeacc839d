"""GAP156."""

from __future__ import annotations

from gapless.model import Site, WaitRule


class TorchMetricsValidateArgs(WaitRule):
    """A TorchMetrics metric checks the values of its inputs on the CPU in each update (`validate_args`).

    ## What waits
    With `validate_args=True`, which is the default, classification metrics check the values of
    predictions and targets: `torch.unique` finds the labels that occur, and Python checks whether one
    is not allowed. Each is a sync.

    ## Why it costs
    Each metric of a collection checks the same batch again. The check costs a sort of the batch on the
    GPU, and two to five syncs per metric and step.

    ## Example
    ```python
    accuracy = torchmetrics.classification.BinaryAccuracy().to(device)
    accuracy.update(torch.sigmoid(logits[:, 0]), y % 2)
    ```

    ## Use instead
    ```python
    accuracy = gapless.metrics.classification.BinaryAccuracy().to(device)
    accuracy.update(torch.sigmoid(logits[:, 0]), y % 2)
    ```
    It checks on the GPU and reports with the next reading, and so does TorchMetrics' own metric after
    `unwait(accuracy)` from `gapless.metrics.torchmetrics`. With `validate_args=False` nothing is checked:
    check a batch of the data once, on the CPU.

    ## When it is fine
    In evaluation, and while the data is new.
    """

    code = "GAP156"
    name = "torchmetrics-validate-args"
    priority = 100
    advice = (
        "`unwait(metric)` from `gapless.metrics.torchmetrics` checks on the GPU and reports later; or "
        "create the metric with `validate_args=False`"
    )
    change = "`unwait(metrics)`, or use `gapless.metrics`"

    def matches(self, site: Site) -> bool:
        return site.mechanism in ("read", "size") and any(
            frame.library == "torchmetrics"
            and frame.function.rpartition(".")[2].endswith("_tensor_validation")
            for frame in site.library_frames
        )
