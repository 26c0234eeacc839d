"""GAP316."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class SetEpochNotCalled(MistakeRule):
    """`set_epoch` of a shuffling sampler is not called between epochs, so all epochs have the same order.

    ## What waits
    Nothing. All ranks must shuffle the same way, so a DistributedSampler derives its order from its
    seed and the epoch number, and it cannot count the epochs itself.

    ## Why it costs
    Every epoch has the same batches in the same order, on every rank. Training converges more slowly and
    to a worse result, and nothing shows it.

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
    `gapless.loading.watch()` around the training loop detects this.

    ## When it is fine
    With `shuffle=False`, or where a trainer calls it (Lightning, Accelerate and Hugging Face's Trainer
    do).
    """

    code = "GAP316"
    name = "set-epoch-not-called"
    advice = "call `loader.sampler.set_epoch(epoch)` at the start of every epoch"
    change = "call `loader.sampler.set_epoch(epoch)`"
