"""GAP312."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class ItemsRepeatedByRanks(MistakeRule):
    """The ranks of a distributed run all process the same items instead of each its own part.

    ## What waits
    Nothing. A DataLoader does not know about other ranks. Without a DistributedSampler, or with an
    `__iter__` that splits only by worker, every rank yields the whole dataset, and the run looks fine.

    ## Why it costs
    Gradients are averaged over copies of the same items: as many GPUs do the work of one. An epoch takes
    as long as on one GPU, and contains every item once per rank.

    ## Example
    ```python
    class Lines(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            yield from islice(open(self.path), info.id, None, info.num_workers)
    ```

    ## Use instead
    ```python
    class Lines(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            first = dist.get_rank() * info.num_workers + info.id
            yield from islice(open(self.path), first, None, dist.get_world_size() * info.num_workers)
    ```
    `gapless.loading.shard(dataset)` does it, with the same number of items for each rank. A map-style
    dataset needs `DataLoader(dataset, sampler=DistributedSampler(dataset))`.
    `gapless.loading.verify(make_loader, ranks=2)` detects this in one process.

    ## When it is fine
    Where every rank must see everything: a validation that each rank does for itself, or model
    parallelism, whose ranks work on the same batch.
    """

    code = "GAP312"
    name = "items-repeated-by-ranks"
    advice = (
        "also split by rank: `DistributedSampler(dataset)`, or `gapless.loading.shard(dataset)` for an "
        "IterableDataset"
    )
    change = "split the items between ranks: `DistributedSampler`"
