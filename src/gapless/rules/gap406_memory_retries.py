"""GAP406."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import binary_size, duration
from gapless.rules import _memory as memory_rules


class MemoryRetries(MemoryRule):
    """Requests find the GPU full: all cached memory is returned, and then requested again piece by piece.

    ## What waits
    The allocator waits for all streams before it returns cached segments; then it tries again. Each
    `cudaFree` and each `cudaMalloc` after it blocks the CPU for about a tenth of a millisecond.

    ## Why it costs
    The queue runs empty while the CPU waits, and the cache has to fill again.

    ## Example
    ```python
    for batch in loader:
        train_step(pad_sequence(batch, batch_first=True).to(device))
    ```

    ## Use instead
    ```python
    for batch in loader:
        tokens = pad_sequence(batch, batch_first=True)
        length = -(-tokens.shape[1] // 128) * 128
        train_step(F.pad(tokens, (0, length - tokens.shape[1])).to(device))
    ```
    Few sizes leave few fragments. `gapless memory --search` shows what other allocator settings would do
    for this particular run: a rule of thumb can make it worse.

    ## When it is fine
    Once, in a run that comes near the GPU's memory.
    """

    code = "GAP406"
    name = "memory-retries"
    advice = (
        "make requests fit the cached blocks: few sizes, expandable segments, or a smaller batch; `gapless "
        "memory --search` tries the settings on this run"
    )
    change = "pad to a few sizes, or use a smaller batch"

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        base = memory.baseline
        if not base.retries or memory.lack is not None:
            return  # what fails is GAP403 or GAP404
        limit = memory_rules.available_bytes(memory)
        drain = memory.times.drain
        drained = (
            f", {duration(base.retries * drain)} of it waiting for the GPU to finish its queue"
            if drain >= 0
            else ("; the time each waits for the GPU to finish its queue is not known and comes on top")
        )
        room = f" of {binary_size(limit)}" if limit > 0 else ""
        yield Hit(
            evidence=(
                f"{base.retries} of {memory.allocations} requests find the GPU full and empty the cache: "
                f"{base.frees} cudaFree and {base.mallocs} cudaMalloc, about {duration(base.price)}"
                f"{drained}",
                f"{binary_size(base.peak_allocated)}{room} allocated at the peak",
            ),
            remedy=memory_rules.advise_setting(memory),
            calls=base.retries,
            steps=sum(step.retries > 0 for step in memory_rules.steady_steps(memory)),
        )
