"""GAP100."""

from __future__ import annotations

from gapless.model import INDEX_OR_VALUE, Site, WaitRule
from gapless.rules._by_use import advise_by_use
from gapless.rules._places import advise_for_library, deciding_frame, parse_waiting_line

_ADVICE = {
    "read": "keep the value on the GPU, and read it only where the CPU needs a number",
    "size": "use a form whose result has a fixed size, such as a mask instead of a selection",
    "values": "use a form that needs no values on the CPU, or prepare those values on the CPU beforehand",
    "status": "use the variant that leaves its error code on the GPU, and check the code rarely",
    "h2d": "copy from pinned memory with `non_blocking=True`, or create the tensor on the GPU",
    "d2h": "copy into pinned memory with `non_blocking=True`, and read it after an event shows that it has "
    "arrived",
    "explicit": "remove the sync: work on one stream already runs in order, and an event orders two streams",
    "free": "keep the memory: the caching allocator reuses it",
}
_INDEX_OR_VALUE = (
    "the write sends a value or an index from the CPU: write a number with `index_fill_` or `fill_`, make an "
    "index on the GPU; a profile with `record_shapes=True` shows which of them it is",
    "write a number with `index_fill_`, or make the index on the GPU",
)
"""Remedy and change of a copy that may be either."""
_CHANGES = {
    "read": "keep the value on the GPU",
    "size": "use a form whose result has a fixed size",
    "values": "use a form that needs no values on the CPU",
    "status": "use the `_ex` variant, check its code every N steps",
    "h2d": "copy from pinned memory with `non_blocking=True`",
    "d2h": "copy into pinned memory with `non_blocking=True`",
    "explicit": "remove this sync",
    "free": "keep the memory instead of freeing it",
}


class UnnamedWait(WaitRule):
    """The CPU waits for the GPU in a way that no other rule covers.

    ## What waits
    The operator named in the finding needs something from the GPU before the CPU can go on: a value, the
    size of its result, an error code, or the end of a copy. No more specific rule describes this place.

    ## Why it costs
    The CPU launches kernels ahead of the GPU. A sync lets the GPU catch up and run dry; until the
    CPU has launched the next kernels, the GPU idles. Work on the CPU that was hidden behind the GPU
    (the next batch, the optimizer's bookkeeping) is no longer hidden.

    ## Example
    ```python
    for step in range(4):
        batch = torch.randn(8, 4)
        torch.cuda.cudart().cudaHostRegister(batch.data_ptr(), batch.nbytes, 0)
        inputs = batch.to(device)
        torch.cuda.cudart().cudaHostUnregister(batch.data_ptr())
    ```

    ## Use instead
    ```python
    for inputs, labels in DataLoader(dataset, batch_size=4, pin_memory=True):
        inputs = inputs.to(device, non_blocking=True)
    ```
    Here, PyTorch's own pinned memory is registered once and used again. In general: keep values on the
    GPU, compute with masks instead of selections, and collect what the CPU needs so that one sync
    every N steps reads all of it.

    ## When it is fine
    Outside the training loop, or so rarely that its share of the time does not matter."""

    code = "GAP100"
    name = "unnamed-wait"
    priority = 0
    advice = "keep what this needs on the GPU, or do it once every N steps instead of in each"
    change = "keep what it needs on the GPU, or do it every N steps"

    def matches(self, site: Site) -> bool:
        return True

    def remedy(self, site: Site) -> str:
        if site.detail == INDEX_OR_VALUE:
            return advise_for_library(site, _INDEX_OR_VALUE[0])
        by_use = advise_by_use(site, parse_waiting_line(site))
        return by_use or advise_for_library(site, _ADVICE.get(site.mechanism, self.advice))

    def known_change(self, site: Site) -> str:
        if site.detail == INDEX_OR_VALUE:
            return _INDEX_OR_VALUE[1]
        return _CHANGES.get(site.mechanism, "") if deciding_frame(site) is None else ""
