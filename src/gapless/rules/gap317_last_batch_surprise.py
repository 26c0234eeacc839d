"""GAP317: a last batch of a single item, or `drop_last` that discards much of the data."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class LastBatchSurprise(MistakeRule):
    """The last batch has only one item, or dropping it loses much or all of the data.

    ## What waits
    Nothing. When items do not divide evenly into batches, the last batch can be as small as one item.
    With `drop_last=True` every worker of an IterableDataset drops its own, and a dataset smaller than a
    batch yields nothing at all.

    ## Why it costs
    BatchNorm refuses to train on one item, at the end of the first epoch. Other layers train on a
    gradient in which one item weighs as much as a whole batch. Dropped items are never trained on; a
    loop without batches succeeds immediately.

    ## Example
    ```python
    loader = DataLoader(dataset, batch_size=(len(dataset) - 1) // 4)
    ```

    ## Use instead
    ```python
    loader = DataLoader(dataset, batch_size=(len(dataset) - 1) // 4, drop_last=True)
    ```
    If each worker drops much of a stream, use fewer workers, a smaller batch, or batches built in the
    dataset (`batch_size=None`). `gapless.loading.verify(loader)` detects this.

    ## When it is fine
    In evaluation, where the last batch has no gradient."""

    code = "GAP317"
    name = "last-batch-surprise"
    advice = (
        "`drop_last=True` if one item is left over; smaller batches or fewer workers if it drops too much"
    )
    change = "`drop_last=True`, or smaller batches"
