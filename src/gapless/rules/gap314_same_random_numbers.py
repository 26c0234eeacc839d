"""GAP314."""

from __future__ import annotations

from gapless.rules._mistakes import MistakeRule


class SameRandomNumbers(MistakeRule):
    """Workers or epochs draw the same random numbers, so that augmentation repeats itself.

    ## What waits
    Nothing. PyTorch seeds `random`, NumPy's global state and torch differently in each worker and epoch.
    A generator that the dataset keeps (`self.rng = numpy.random.default_rng(0)`) is instead copied into
    every worker, again in every epoch unless workers persist, and a constant seed in `worker_init_fn`
    does the same to the global ones.

    ## Why it costs
    Items are cropped and flipped the same way in all workers and in every epoch: much less variety
    than it seems, and no error.

    ## Example
    ```python
    class Crops(Dataset):
        def __init__(self, images):
            self.images = images
            self.rng = numpy.random.default_rng(0)

        def __getitem__(self, at):
            return crop(self.images[at], self.rng.integers(32))
    ```

    ## Use instead
    ```python
    class Crops(Dataset):
        def __init__(self, images):
            self.images = images

        def __getitem__(self, at):
            return crop(self.images[at], torch.randint(32, ()).item())
    ```
    Torch's own random numbers follow `torch.manual_seed` and the loader's `generator`, so they are
    reproducible. To use your own generator, create it in the worker from `torch.initial_seed()`.
    `gapless.loading.verify(loader)` detects this.

    ## When it is fine
    Where the numbers should be the same each time, as in validation."""

    code = "GAP314"
    name = "same-random-numbers"
    advice = (
        "create the generator in the worker, from `torch.initial_seed()`, or draw torch's own random numbers"
    )
    change = "seed from `torch.initial_seed()` in each worker"
