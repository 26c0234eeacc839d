"""GAP317."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class LastBatchSurprise(MistakeRule):
    """The last batch has one item, or dropping it leaves out much or all.

    ## What waits
    Nothing. When items do not divide into batches, the last batch is as small as one item. With
    `drop_last=True` every worker of an IterableDataset drops its own, and a dataset smaller than a batch
    yields nothing at all.

    ## Why it costs
    BatchNorm refuses to train on one item, at the end of the first epoch. Other layers train on a
    gradient that weighs one item as much as a whole batch. What workers drop is never trained on; a loop
    without batches succeeds at once.

    ## Example
    ```python
    loader = DataLoader(dataset, batch_size=(len(dataset) - 1) // 4)
    ```

    ## Use instead
    ```python
    loader = DataLoader(dataset, batch_size=(len(dataset) - 1) // 4, drop_last=True)
    ```
    Where each worker drops much of a stream, take fewer workers, a smaller batch, or batches made in the
    dataset (`batch_size=None`). `gapless.loading.verify(loader)` finds this rule.

    ## When it is fine
    In evaluation, where no gradient follows from the last batch.
    """

    code = "GAP317"
    name = "last-batch-surprise"
    advice = (
        "`drop_last=True` where one item is left, and smaller batches or fewer workers where it "
        "drops too much"
    )
    change = "`drop_last=True`, or smaller batches"
