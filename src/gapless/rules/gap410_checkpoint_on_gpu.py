"""GAP410."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule
from gapless.model.memory_report import LoadedCopy, MemoryReport
from gapless.model.wording import binary_size
from gapless.rules import _memory as memory_rules


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
        for checkpoint in memory.checkpoints:
            if checkpoint.bytes >= LEAST:
                yield Hit(
                    evidence=tuple(_describe_checkpoint(checkpoint)),
                    remedy=_remedy(checkpoint),
                    change=f'`map_location="cpu"`, then `del {checkpoint.name}`'
                    if checkpoint.name.isidentifier()
                    else "",
                    site=memory_rules.memory_site(checkpoint.line),
                    bytes=checkpoint.bytes,
                )
        if not memory.checkpoints:
            yield from self._at_the_peak(memory)

    def _at_the_peak(self, memory: MemoryReport) -> Iterator[Hit]:
        """A copy that is gone when steps run, where most is allocated while it is there."""
        for part in (memory.failing or memory.peak).parts:
            if part.kind == "checkpoint" and part.bytes >= LEAST:
                owners = (memory.failing or memory.peak).owners
                line = next((owner.line for owner in owners if owner.kind == "checkpoint"), None)
                yield Hit(
                    evidence=(f"{binary_size(part.bytes)} of the peak are a checkpoint that is loaded",),
                    remedy=self.advice,
                    site=memory_rules.memory_site(line),
                    bytes=part.bytes,
                )


def _describe_checkpoint(checkpoint: LoadedCopy) -> Iterator[str]:
    whose = f"`{checkpoint.name}` keeps" if checkpoint.name else "something keeps"
    yield (
        f"{whose} {binary_size(checkpoint.bytes)} of the checkpoint on the GPU while steps "
        "run, beside weights and "
        "optimizer state"
    )
    if len(checkpoint.entries) > 1:
        parts = [f"`{name}` {binary_size(size)}" for name, size in checkpoint.entries[:_MAX_ENTRIES_NAMED]]
        yield f"of it are {', '.join(parts)}"


def _remedy(checkpoint: LoadedCopy) -> str:
    if not checkpoint.name.isidentifier():
        return CheckpointOnGpu.advice
    return (
        f'load it with `map_location="cpu"` (and `mmap=True`), and `del {checkpoint.name}` '
        "once `load_state_dict` "
        "has copied what it needs"
    )


LEAST = 1 << 20
"""Smaller copies are not worth a finding, in bytes."""
_MAX_ENTRIES_NAMED = 4
"""More entries would make the sentence too long."""
