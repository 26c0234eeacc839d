"""GAP311."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class ItemsRepeatedByWorkers(MistakeRule):
    """An IterableDataset yields everything in every worker, so that an epoch has each item several times.

    ## What waits
    Nothing. Each worker of a DataLoader has a copy of the dataset and goes through all of it, and the
    loop gets the items of all workers. No error is raised: PyTorch's own warning compares the number of
    batches with the number of items, and is silent even at twice the items.

    ## Why it costs
    An epoch takes as many times longer as there are workers, and more workers, which should make it
    faster, make it longer. The learning rate's schedule and the metrics of an epoch count items that were
    not new.

    ## Example
    ```python
    class Lines(IterableDataset):
        def __iter__(self):
            yield from open(self.path)


    loader = DataLoader(Lines("train.txt"), batch_size=64, num_workers=4)
    ```

    ## Use instead
    ```python
    loader = DataLoader(gapless.loading.shard(Lines("train.txt")), batch_size=64, num_workers=4)
    ```
    `shard` gives every worker of every rank its own part. Inside `__iter__` the same is
    `get_worker_info()`: keep every item whose number modulo `num_workers` is `id`.
    `gapless.loading.verify(loader)` finds this rule.

    ## When it is fine
    Where the dataset draws its items at random without end, and no epoch is meant.
    """

    code = "GAP311"
    name = "items-repeated-by-workers"
    advice = (
        "divide the items: `DataLoader(gapless.loading.shard(dataset), ...)`, or "
        "`get_worker_info()` in `__iter__`"
    )
    change = "divide the items between workers: `shard(dataset)`"
