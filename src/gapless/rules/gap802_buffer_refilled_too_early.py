"""GAP802."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.race import Race
from gapless.rules._races import KindRule, describe_access, describe_line


class BufferRefilledTooEarly(KindRule):
    """The CPU writes into pinned memory that a copy with `non_blocking=True` is still using.

    ## What waits
    Nothing, and that is the mistake. A copy from pinned memory to the GPU with `non_blocking=True` reads its
    source when the GPU gets to it. Whatever the CPU writes there in the meantime is what arrives.

    ## Why it costs
    Numbers are wrong, without an error: the batch on the GPU is the next one, or a mixture of both. How often
    depends on how far ahead the CPU runs; in training, nearly always.

    ## Example
    ```python
    staging = torch.empty(64, 32, pin_memory=True)
    for step in range(3):
        staging.copy_(torch.randn(64, 32))
        batch = staging.to("cuda", non_blocking=True)
    ```

    ## Use instead
    ```python
    staging = [torch.empty(64, 32, pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in staging]
    for step in range(3):
        slot = step % 2
        copied[slot].synchronize()  # of two steps ago: done long since
        staging[slot].copy_(torch.randn(64, 32))
        batch = staging[slot].to("cuda", non_blocking=True)
        copied[slot].record()
    ```
    A fresh pinned tensor for each copy needs no event: PyTorch keeps its memory until the copy is done.
    `gapless.ops.to_device` and a DataLoader with `pin_memory=True` do that.

    ## When it is fine
    Never. Dropping the pinned tensor while the copy is in progress is fine, and is not reported.
    """

    code = "GAP802"
    name = "buffer-refilled-too-early"
    kind = "in-flight-write"
    advice = (
        "give each buffer an event that is recorded after its copy, and call `event.synchronize()` before "
        "writing there again (two alternating buffers hardly ever wait); or pin a fresh tensor for each "
        "copy"
    )
    change = "wait for the copy before refilling its buffer"

    def evidence(self, race: Race) -> Iterator[str]:
        did = "starts a copy that fills it," if race.earlier.writes else "starts a copy out of it,"
        yield describe_access(race.earlier, did)
        if race.later.line is None:
            yield "when the copy was waited for, the buffer held other values: something had written into it"
            return
        operation = f" ({race.later.what})" if race.later.what else ""
        yield (
            f"{describe_line(race.later.line)} writes into it on the CPU{operation}; nothing in "
            "between makes the CPU wait"
        )

    def wrong(self, race: Race) -> str:
        if race.earlier.writes:
            return "the copy may overwrite what was written, whenever it is not done by then"
        return "the newer values arrive, or a mix of both, whenever the copy is not done by then"
