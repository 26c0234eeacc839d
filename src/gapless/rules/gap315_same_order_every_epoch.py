"""GAP315."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class SameOrderEveryEpoch(MistakeRule):
    """The order is random, and the same in every epoch.

    ## What waits
    Nothing. A seed that is set inside the loop over the epochs, or a sampler or dataset that makes its
    generator from a constant in `__iter__`, begins each epoch in the same random state.

    ## Why it costs
    The batches of all epochs are made of the same items. Training on them converges more slowly and to
    something worse than on batches that are mixed anew, and nothing shows it.

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
    Kept workers (`persistent_workers=True`) do not see what the loop sets in the dataset: there, count
    the epochs in `__iter__`. `gapless.loading.verify(loader)` finds this rule in a loader,
    `gapless.loading.watch()` in a loop.

    ## When it is fine
    Where the same order is wanted each time, as in a validation.
    """

    code = "GAP315"
    name = "same-order-every-epoch"
    advice = (
        "seed from the epoch too: `numpy.random.default_rng([seed, epoch])`, and seed once before "
        "the loop over the epochs"
    )
    change = "seed from the epoch too"
