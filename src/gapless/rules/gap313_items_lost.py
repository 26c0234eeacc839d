"""GAP313."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class ItemsLost(MistakeRule):
    """No worker and no rank yields some of the dataset's items.

    ## What waits
    Nothing. If a dataset or a sampler is cut into equal blocks, the remainder belongs to no block. An
    iterator created in `__init__` is exhausted after the first epoch, and the second one is empty.

    ## Why it costs
    The model never sees these items, in any epoch. With many workers and ranks, and files instead of
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
    `gapless.loading.shard(dataset)` loses nothing. `gapless.loading.verify(loader)` compares the
    content of what the workers yield with what a single process yields.

    ## When it is fine
    Where the remainder is dropped on purpose (`drop_last=True`) and the order changes from one epoch to
    the next."""

    code = "GAP313"
    name = "items-lost"
    advice = (
        "assign the remainder too: every n-th item instead of n equal blocks, or "
        "`gapless.loading.shard(dataset)`"
    )
    change = "lose no remainder: every n-th item"
