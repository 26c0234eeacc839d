"""GAP318."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class RanksOfDifferentLength(MistakeRule):
    """The ranks of a distributed run get different numbers of batches.

    ## What waits
    A rank with one batch more than another computes its gradients and waits in the collective for
    ranks that have left the loop.

    ## Why it costs
    The run hangs at the end of an epoch until the collective times out, or pairs the step of one rank
    with the validation of another. Usually it is one batch, in the last step.

    ## Example
    ```python
    files = files[dist.get_rank() :: dist.get_world_size()]
    loader = DataLoader(Lines(files), batch_size=64)
    ```

    ## Use instead
    ```python
    loader = DataLoader(gapless.loading.shard(Lines(files)), batch_size=64)
    ```
    `shard` gives all ranks the same number of items, by repeating some or by dropping some
    (`even="drop"`); DistributedSampler and `gapless.loading.BucketBatchSampler` do so for map-style
    datasets. `gapless.loading.verify(make_loader, ranks=2)` detects this in one process.

    ## When it is fine
    Where the loop ends on all ranks after a number of steps that each of them reaches, or inside DDP's
    `join`."""

    code = "GAP318"
    name = "ranks-of-different-length"
    advice = (
        "give all ranks the same number of batches: `DistributedSampler`, `gapless.loading.shard` "
        "or `BucketBatchSampler`"
    )
    change = "give all ranks the same number of batches"
