"""GAP315."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class SameOrderEveryEpoch(MistakeRule):
    """The order is random but the same in every epoch.

    ## What waits
    Nothing. A seed that is set inside the loop over the epochs, or a sampler or dataset that creates
    its generator from a constant in `__iter__`, starts each epoch in the same random state.

    ## Why it costs
    The batches contain the same items in all epochs. Training converges more slowly and to a worse
    result than with reshuffled batches, and nothing shows it.

    ## Example
    ```python
    class Shuffled(IterableDataset):
        def __iter__(self):
            order = numpy.random.default_rng(0).permutation(len(self.data))
            yield from (self.data[at] for at in order)
    ```

    ## Use instead
    ```python
    class Shuffled(IterableDataset):
        def __iter__(self):
            order = numpy.random.default_rng([0, self.epoch]).permutation(len(self.data))
            yield from (self.data[at] for at in order)

        def set_epoch(self, epoch):
            self.epoch = epoch
    ```
    Persistent workers (`persistent_workers=True`) do not see what the loop sets in the dataset; count
    the epochs in `__iter__` instead. `gapless.loading.verify(loader)` detects this in a loader,
    `gapless.loading.watch()` in a loop.

    ## When it is fine
    Where the same order is wanted each time, as in validation."""

    code = "GAP315"
    name = "same-order-every-epoch"
    advice = (
        "include the epoch in the seed: `numpy.random.default_rng([seed, epoch])`, and seed once before "
        "the loop over epochs"
    )
    change = "include the epoch in the seed"
