"""GAP801."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.race import Race
from gapless.rules._races import KindRule, at, side


class CopyReadTooEarly(KindRule):
    """The CPU reads what a copy with `non_blocking=True` may still be filling: wrong numbers.

    ## What waits
    Nothing, and that is the mistake. A copy from the GPU into pinned memory with `non_blocking=True` is only
    queued: the CPU goes on at once, and `x.to("cpu", non_blocking=True)` lands in pinned memory, too. What
    reads the copy before something has made the CPU wait for it gets the bytes that were there before.

    ## Why it costs
    Numbers are wrong, without an error: the value of an earlier step, zeros, or half of a tensor. How
    often depends on how far the CPU is ahead, in training nearly always. A checkpoint that is written from
    such a copy is corrupt.

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
    `gapless.ops.read_later` does that: `reading.ready()` says whether the copy is done, without a sync.

    ## When it is fine
    Never. Where a copy is known to be done because something later on its stream was waited for, that wait
    is seen, and nothing is said.
    """

    code = "GAP801"
    name = "copy-read-too-early"
    kind = "in-flight-read"
    advice = (
        "record an event behind the copy and call `event.synchronize()` just before the read, or use "
        "`gapless.ops.read_later`, which tells when the copy is done; a plain `.cpu()` waits by itself"
    )
    change = "wait for the copy before reading: `event.synchronize()`"

    def told(self, race: Race) -> Iterator[str]:
        yield side(race.earlier, "starts a copy that fills it,")
        if race.later.line is None and race.later.what:
            yield f"{race.later.what} may read it on the CPU at once; nothing in between makes the CPU wait"
            return
        what = f" ({race.later.what})" if race.later.what else ""
        yield f"{at(race.later.line)} reads it on the CPU{what}; nothing in between makes the CPU wait"

    def wrong(self, race: Race) -> str:
        return "it reads what was there before, or part of each, as often as the copy is not done by then"
