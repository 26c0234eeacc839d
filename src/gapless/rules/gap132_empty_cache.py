"""GAP132."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import advise_for_library


class EmptyCache(WaitRule):
    """`torch.cuda.empty_cache()`: memory is returned to the driver, which waits for the GPU.

    ## What waits
    `torch.cuda.empty_cache()` calls `cudaFree` for each cached block that is not in use, and `cudaFree`
    waits until the GPU is idle.

    ## Why it costs
    It costs twice: the sync now, and the `cudaMalloc` calls of the next step, which has to request the same
    memory from the driver again. Memory in PyTorch's cache is not lost: PyTorch reuses it automatically.

    ## Example
    ```python
    for step in range(10):
        train_step()
        torch.cuda.empty_cache()
    ```

    ## Use instead
    ```python
    for step in range(10):
        train_step()
    ```
    Remove it. Against fragmentation, set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; against
    running out of memory, drop references before the next allocation (`del loss, output`); the cache does
    not need to be emptied for that.

    ## When it is fine
    Once between two phases of a program that need blocks of different sizes, or when another process needs
    the memory.
    """

    code = "GAP132"
    name = "empty-cache"
    advice = (
        "remove it: cached memory is reused automatically; against fragmentation set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
    )
    change = "remove `torch.cuda.empty_cache()` from the loop"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "free" or site.operator == "cudaFree"

    def remedy(self, site: Site) -> str:
        return advise_for_library(site, self.advice)
