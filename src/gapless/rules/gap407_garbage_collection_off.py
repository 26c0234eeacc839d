"""GAP407."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule
from gapless.model.memory_report import MemoryReport


class GarbageCollectionOff(MemoryRule):
    """`garbage_collection_threshold` is set but has no effect: the process may use all of the GPU's memory.

    ## What waits
    Nothing more than without the setting. It was meant to return old blocks before the GPU is full; it
    does not, and the whole cache is still emptied as before.

    ## Why it costs
    PyTorch uses the threshold only if the process is limited to a fraction of the memory, and otherwise
    gives no warning.

    ## Example
    ```python
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "garbage_collection_threshold:0.8"
    ```

    ## Use instead
    ```python
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "garbage_collection_threshold:0.8"
    torch.cuda.set_per_process_memory_fraction(0.95)
    ```
    The fraction must be below 1.

    ## When it is fine
    Where it was set for another program that shares the environment.
    """

    code = "GAP407"
    name = "garbage-collection-off"
    advice = (
        "remove the setting, or call `torch.cuda.set_per_process_memory_fraction(0.95)`, or another "
        "fraction below 1, in addition, if `gapless memory --try` with that fraction shows that it helps"
    )
    change = "add `set_per_process_memory_fraction(0.95)`"

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        settings = dict(part.partition(":")[::2] for part in memory.settings.replace(" ", "").split(","))
        threshold = _parse_number(settings.get("garbage_collection_threshold", ""))
        if threshold <= 0 or _parse_number(settings.get("per_process_memory_fraction", "1")) < 1:
            return
        if memory.origin != "emulated" and not _is_confirmed(memory):
            return
        yield Hit(
            evidence=(
                f"garbage_collection_threshold is {threshold:g}, but the process does not seem to be "
                "limited to a part of the GPU's memory",
            ),
            remedy=_remedy(memory, threshold),
        )


def _remedy(memory: MemoryReport, threshold: float) -> str:
    if "garbage_collection_threshold" in memory.advised:
        return f"set `PYTORCH_CUDA_ALLOC_CONF={memory.advised}`, the best that was tried"
    both = f"garbage_collection_threshold:{threshold:g},per_process_memory_fraction:0.95"
    if memory.trials:
        return "remove the setting: none of the settings tried with it is better"
    return (
        "remove the setting, or call `torch.cuda.set_per_process_memory_fraction(0.95)` in addition, if "
        f"`gapless memory --try {both}` shows that it helps"
    )


def _is_confirmed(memory: MemoryReport) -> bool:
    """Whether a recorded run shows that nothing was collected.

    A snapshot does not contain a fraction set by a call; but if memory was returned only when the GPU was
    full, there was none.
    """
    exact = memory.fidelity is not None and memory.fidelity.exact
    return exact and memory.baseline.retries > 0 and not memory.baseline.collections


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
