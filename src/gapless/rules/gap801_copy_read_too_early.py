"""GAP801."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.race import Race
from gapless.rules._races import KindRule, describe_access, describe_line


class CopyReadTooEarly(KindRule):
    """The CPU reads memory that a copy with `non_blocking=True` may still be filling: wrong numbers.

    ## What waits
    Nothing, and that is the mistake. A copy from the GPU into pinned memory with `non_blocking=True` is only
    queued: the CPU continues immediately, and `x.to("cpu", non_blocking=True)` also lands in pinned memory.
    Code that reads the copy before something makes the CPU wait for it gets the old bytes.

    ## Why it costs
    Numbers are wrong, without an error: the value of an earlier step, zeros, or half of a tensor. How
    often depends on how far ahead the CPU runs; in training, nearly always. A checkpoint written from such
    a copy is corrupt.

    ## Example
    ```python
    total = torch.zeros(())
    for step in range(3):
        loss = torch.rand(1000, device="cuda").mean()
        on_cpu = loss.to("cpu", non_blocking=True)
        total += on_cpu
    ```

    ## Use instead
    ```python
    total = torch.zeros(())
    for step in range(3):
        loss = torch.rand(1000, device="cuda").mean()
        on_cpu = loss.to("cpu", non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        copied.synchronize()  # as late as possible: just before the read
        total += on_cpu
    ```
    `gapless.ops.read_later` does that: `reading.ready()` reports whether the copy is done, without a sync.

    ## When it is fine
    Never. If the CPU waits for something later on the same stream, the copy is known to be done, and
    nothing is reported."""

    code = "GAP801"
    name = "copy-read-too-early"
    kind = "in-flight-read"
    advice = (
        "record an event after the copy and call `event.synchronize()` just before the read, or use "
        "`gapless.ops.read_later`, which reports when the copy is done; a plain `.cpu()` waits on its own"
    )
    change = "wait for the copy before reading: `event.synchronize()`"

    def evidence(self, race: Race) -> Iterator[str]:
        yield describe_access(race.earlier, "starts a copy that fills it,")
        if race.later.line is None and race.later.what:
            yield (
                f"{race.later.what} may read it on the CPU immediately; nothing in between makes the CPU wait"
            )
            return
        operation = f" ({race.later.what})" if race.later.what else ""
        yield (
            f"{describe_line(race.later.line)} reads it on the CPU{operation}; nothing in between "
            "makes the CPU wait"
        )

    def wrong(self, race: Race) -> str:
        return "it reads old values, or a mix of old and new, whenever the copy is not done by then"
