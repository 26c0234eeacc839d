"""GAP805."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.race import Race
from gapless.rules._races import KindRule, describe_access, reads_or_writes


class CollectiveNotWaitedFor(KindRule):
    """A tensor of an asynchronous collective is used before its `wait()` on the stream that uses it.

    ## What waits
    Nothing, and that is the mistake. With `async_op=True` a collective runs on NCCL's own stream.
    `work.wait()` makes the current stream wait for it, not the CPU.

    ## Why it costs
    Numbers are wrong, without an error: partial sums, or the tensor's old values. Ranks may diverge, which
    shows much later.

    ## Example
    ```python
    torch.distributed.init_process_group("nccl")
    total = torch.ones(1000, device="cuda")
    work = torch.distributed.all_reduce(total, async_op=True)
    mean = total / torch.distributed.get_world_size()
    work.wait()
    torch.distributed.destroy_process_group()
    ```

    ## Use instead
    ```python
    torch.distributed.init_process_group("nccl")
    total = torch.ones(1000, device="cuda")
    work = torch.distributed.all_reduce(total, async_op=True)
    work.wait()  # the stream waits, the CPU does not
    mean = total / torch.distributed.get_world_size()
    torch.distributed.destroy_process_group()
    ```
    Input tensors must not be written before `wait()` either.

    ## When it is fine
    Never. Reading a tensor that the collective only reads is not a race and is not reported."""

    code = "GAP805"
    name = "collective-not-waited-for"
    kind = "collective"
    advice = "call `work.wait()` before the use, on the stream that uses the tensor"
    change = "call `wait()` on the work before its tensors are used"

    def evidence(self, race: Race) -> Iterator[str]:
        yield describe_access(race.earlier, reads_or_writes(race.earlier))
        yield (
            f"{describe_access(race.later, reads_or_writes(race.later))}; no `wait()` in between "
            "makes that stream wait"
        )

    def wrong(self, race: Race) -> str:
        if race.later.writes and not race.earlier.writes:
            return "other ranks may get what was written later"
        return "it may see partial sums, or the old values"
