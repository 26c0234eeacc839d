"""GAP410."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule
from gapless.model.memory_report import LoadedCopy, MemoryReport
from gapless.model.wording import binary_size
from gapless.rules import _memory as held


class CheckpointOnGpu(MemoryRule):
    """A checkpoint is loaded to the GPU, beside the weights and states that are made from it.

    ## What waits
    Nothing, but each tensor is copied to the GPU in a copy that the CPU waits for.

    ## Why it costs
    `torch.load` puts tensors where they were saved from, or where `map_location` says. `load_state_dict`
    copies them into the weights: both copies are then on the GPU, until nothing refers to the checkpoint any
    more. A variable of a function that also trains refers to it to the end.

    ## Example
    ```python
    checkpoint = torch.load("last.pt", map_location="cuda")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer)
    ```

    ## Use instead
    ```python
    checkpoint = torch.load("last.pt", map_location="cpu", mmap=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    del checkpoint
    train(model, optimizer)
    ```
    `load_state_dict` copies to the GPU what belongs there. With `mmap=True` the file is read as it is needed,
    and not held in the CPU's memory.

    ## When it is fine
    Where the weights are compared with the loaded ones while training."""

    code = "GAP410"
    name = "checkpoint-on-gpu"
    advice = (
        'load it with `map_location="cpu"` (and `mmap=True`), and `del` the checkpoint once '
        "`load_state_dict` has copied what it needs"
    )
    change = '`map_location="cpu"` in `torch.load`, then `del`'

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        for one in memory.checkpoints:
            if one.bytes >= LEAST:
                yield Hit(
                    evidence=tuple(_of(one)),
                    remedy=_remedy(one),
                    change=f'`map_location="cpu"`, then `del {one.name}`' if one.name.isidentifier() else "",
                    site=held.site(one.line),
                    bytes=one.bytes,
                )
        if not memory.checkpoints:
            yield from self._at_the_peak(memory)

    def _at_the_peak(self, memory: MemoryReport) -> Iterator[Hit]:
        """A copy that is gone when steps run, where most is allocated while it is there."""
        for one in (memory.failing or memory.peak).parts:
            if one.kind == "checkpoint" and one.bytes >= LEAST:
                owners = (memory.failing or memory.peak).owners
                line = next((owner.line for owner in owners if owner.kind == "checkpoint"), None)
                yield Hit(
                    evidence=(f"{binary_size(one.bytes)} of the peak are a checkpoint that is loaded",),
                    remedy=self.advice,
                    site=held.site(line),
                    bytes=one.bytes,
                )


def _of(one: LoadedCopy) -> Iterator[str]:
    whose = f"`{one.name}` keeps" if one.name else "something keeps"
    yield (
        f"{whose} {binary_size(one.bytes)} of the checkpoint on the GPU while steps run, beside weights and "
        "optimizer state"
    )
    if len(one.entries) > 1:
        parts = [f"`{name}` {binary_size(size)}" for name, size in one.entries[:_MOST]]
        yield f"of it are {', '.join(parts)}"


def _remedy(one: LoadedCopy) -> str:
    if not one.name.isidentifier():
        return CheckpointOnGpu.advice
    return (
        f'load it with `map_location="cpu"` (and `mmap=True`), and `del {one.name}` once `load_state_dict` '
        "has copied what it needs"
    )


LEAST = 1 << 20
"""Bytes below which it is not worth a line."""
_MOST = 4
