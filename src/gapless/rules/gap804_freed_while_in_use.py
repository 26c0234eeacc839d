"""GAP804."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.race import Access, Race
from gapless.rules._races import KindRule, describe_access, describe_line, reads_or_writes


class FreedWhileInUse(KindRule):
    """A tensor is freed while another stream still uses it, and its memory goes to a new tensor.

    ## What waits
    Nothing, and that is the mistake. PyTorch's allocator gives freed memory to the next request of the stream
    it was allocated on. The allocator knows that another stream still uses it only if
    `tensor.record_stream(stream)` was called.

    ## Why it costs
    The new tensor is written while the old one is still being read: wrong numbers or NaN, without an error,
    now and then, far from the line responsible.

    ## Example
    ```python
    side = torch.cuda.Stream()
    x = torch.randn(1000, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    del x
    z = torch.zeros(1000, device="cuda")
    ```

    ## Use instead
    ```python
    side = torch.cuda.Stream()
    x = torch.randn(1000, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    x.record_stream(side)
    del x
    z = torch.zeros(1000, device="cuda")
    ```
    Without `record_stream`: keep the tensor until its own stream has waited for the other one. A prefetcher
    calls `batch.record_stream(torch.cuda.current_stream())` when it hands a batch over;
    `gapless.loading.DevicePrefetcher` does.

    ## When it is fine
    Never. Whether the allocator reuses exactly that block depends on what else is free; here the next
    matching request of its stream and pool is assumed to get it."""

    code = "GAP804"
    name = "freed-while-in-use"
    kind = "freed"
    of_the_first = True
    advice = (
        "call `tensor.record_stream(stream)` with the stream that uses it, before the last reference is "
        "dropped; or keep the tensor until its own stream has waited for that stream"
    )
    change = "call `record_stream` before the tensor is freed"

    def evidence(self, race: Race) -> Iterator[str]:
        yield describe_access(race.earlier, reads_or_writes(race.earlier))
        freed = Access(stack=race.freed).line
        if freed is not None and freed.short != (race.later.line.short if race.later.line else ""):
            yield (
                f"{describe_line(freed)} drops the last reference to it; that stream may not be done, and no "
                "`record_stream` protects it"
            )
        else:
            yield (
                "its last reference is dropped while that stream may not be done, and no `record_stream` "
                "protects it"
            )
        yield (
            f"{describe_line(race.later.line)} may get the same memory ({race.later.where}, "
            f"{race.later.what})"
        )

    def wrong(self, race: Race) -> str:
        return "now and then, the new values may overwrite the old ones while they are in use"
