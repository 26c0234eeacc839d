"""GAP313."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class ItemsLost(MistakeRule):
    """Items that the dataset has come from no worker and no rank.

    ## What waits
    Nothing. Where a dataset or a sampler is cut into equal blocks, what is left when it does not divide
    belongs to nobody. An iterator that is made in `__init__` is used up after the first epoch, and the
    second one is empty.

    ## Why it costs
    The model never sees these items, in no epoch. With many workers and ranks, and files in place of
    items, it can be a large part.

    ## Example
    ```python
    class Numbers(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            share = len(self.data) // info.num_workers
            yield from self.data[info.id * share : (info.id + 1) * share]
    ```

    ## Use instead
    ```python
    class Numbers(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            yield from self.data[info.id :: info.num_workers]
    ```
    `gapless.loading.shard(dataset)` loses nothing. `gapless.loading.verify(loader)` compares what the
    workers yield with what one process alone yields, by the items' content.

    ## When it is fine
    Where the rest is left out on purpose (`drop_last=True`) and the order changes from one epoch to the
    next.
    """

    code = "GAP313"
    name = "items-lost"
    advice = (
        "give the rest to somebody: every n-th item and not n equal blocks, or "
        "`gapless.loading.shard(dataset)`"
    )
    change = "divide with no rest: every n-th item"
