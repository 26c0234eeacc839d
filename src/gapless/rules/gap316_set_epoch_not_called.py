"""GAP316."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class SetEpochNotCalled(MistakeRule):
    """`set_epoch` of a sampler that shuffles is not called between epochs, so that all have one order.

    ## What waits
    Nothing. All ranks must shuffle alike, so a DistributedSampler's order follows from its seed and the
    number of the epoch, and it cannot count the epochs itself.

    ## Why it costs
    Every epoch has the same batches in the same order, on every rank. Training converges more slowly and
    to something worse, and nothing shows it.

    ## Example
    ```python
    for epoch in range(epochs):
        for inputs, labels in loader:
            train_step(inputs, labels)
    ```

    ## Use instead
    ```python
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            train_step(inputs, labels)
    ```
    `gapless.loading.watch()` around the training looks on and finds this rule.

    ## When it is fine
    With `shuffle=False`, or where a trainer calls it (Lightning, Accelerate and Hugging Face's Trainer
    do).
    """

    code = "GAP316"
    name = "set-epoch-not-called"
    advice = "call `loader.sampler.set_epoch(epoch)` at the beginning of every epoch"
    change = "call `loader.sampler.set_epoch(epoch)`"
