"""GAP408."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule
from gapless.model.memory_report import MemoryReport
from gapless.rules import _memory as memory_rules


class ExpandableSegmentsOff(MemoryRule):
    """Memory is unused in fragments that expandable segments would use: replaying the run with them shows it.

    ## What waits
    Nothing as long as the GPU has more. When it is full, the allocator waits, empties its cache and asks
    again.

    ## Why it costs
    Blocks of different sizes cannot use each other's segments, so more is reserved than is ever
    allocated at once. The difference could hold a larger batch.

    ## Example
    ```python
    import torch
    ```

    ## Use instead
    ```python
    import os

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch
    ```
    The variable must be set before the first allocation, best in the shell. Such a segment grows by
    mapping more pages at its end, and blocks of any size share them.

    ## When it is fine
    Where memory is not a concern, and where tensors are shared with other processes through handles that do
    not support such segments."""

    code = "GAP408"
    name = "expandable-segments-off"
    advice = "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: the replay shows what it saves"
    change = "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        saving = memory_rules.describe_expandable(memory)
        limit = memory_rules.available_bytes(memory)
        base = memory.baseline
        tight = memory.lack is not None or base.retries > 0
        if (
            "expandable_segments:True" not in memory.advised
            or not saving
            or not (tight or 0 < _MIN_RESERVED_SHARE * limit <= base.peak_reserved)
        ):
            return
        yield Hit(evidence=(saving,), remedy=memory_rules.advise_setting(memory))


_MIN_RESERVED_SHARE = 0.5
"""Share of the GPU's memory that must be reserved before fragmentation is worth a change."""
