"""GAP303."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, LoaderRule
from gapless.model.loader_use import LoaderUse
from gapless.model.wording import count, duration
from gapless.rules import _loader as loader


class LoaderRestarted(LoaderRule):
    """Each step starts a new pass through the loader and uses only its first batch.

    ## What waits
    `iter(loader)` begins an epoch. With workers it starts them all, sends each its first work and waits for
    the first batch; the other batches are thrown away when the next step starts over. Without workers the
    sampler shuffles the whole dataset for one batch.

    ## Why it costs
    Nothing is prefetched: each step waits for a whole batch and for the workers to start, and more workers
    make it longer. With a shuffling sampler each batch is drawn from the whole dataset again, so there are no
    epochs: some items come twice before others come at all. Without shuffling it is always the same batch.

    ## Example
    ```python
    for step in range(steps):
        inputs, labels = next(iter(loader))
        train_step(inputs, labels)
    ```

    ## Use instead
    ```python
    def endless(loader):
        while True:
            yield from loader


    batches = endless(loader)
    for step in range(steps):
        inputs, labels = next(batches)
        train_step(inputs, labels)
    ```
    A loop over the loader itself does the same for one epoch: `for inputs, labels in loader`.

    ## When it is fine
    Once, to look at a batch; or if the loader has only one batch."""

    code = "GAP303"
    name = "loader-restarted"
    advice = (
        "keep the iterator: `for batch in loader`, or `batches = iter(loader)` once and `next(batches)` in "
        "each step, created again when it ends"
    )
    change = "keep the loader's iterator from step to step"

    def of_loader(self, use: LoaderUse) -> Iterator[Hit]:
        if not use.restarted:
            return
        whole = f" of {use.length:,}" if use.length > 0 else ""
        workers = f"; each starts {count(use.setting.workers, 'worker')}" if use.setting.workers else ""
        passes = f"{use.passes:,} passes were started for {use.batches:,} batches{whole}{workers}"
        late = round(use.first * use.per_step)
        costs = f"the first batch of a pass takes {duration(use.first)}, as observed in this run"
        matters = use.step.most and late >= loader.MIN_SHARE_OF_STEP * (use.step.most + late)
        yield Hit(evidence=(passes, costs), remedy=self.advice, idle=late if matters else 0, steps=1)
