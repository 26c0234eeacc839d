"""GAP311."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class ItemsRepeatedByWorkers(MistakeRule):
    """An IterableDataset yields everything in every worker, so an epoch contains each item several times.

    ## What waits
    Nothing. Each worker of a DataLoader has a copy of the dataset and goes through all of it, and the
    loop gets the items of all workers. No error is raised: PyTorch's own warning compares the number of
    batches with the number of items, and is silent even at twice the items.

    ## Why it costs
    An epoch takes as many times longer as there are workers, and adding workers, which should make it
    faster, makes it longer. The learning-rate schedule and epoch metrics count duplicates.

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
    `get_worker_info()`: keep every item whose index modulo `num_workers` is `id`.
    `gapless.loading.verify(loader)` detects this.

    ## When it is fine
    Where the dataset draws random items endlessly and there are no epochs."""

    code = "GAP311"
    name = "items-repeated-by-workers"
    advice = (
        "split the items: `DataLoader(gapless.loading.shard(dataset), ...)`, or `get_worker_info()` in "
        "`__iter__`"
    )
    change = "split the items between workers: `shard(dataset)`"
