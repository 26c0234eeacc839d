"""GAP803."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.race import Race
from gapless.rules._races import KindRule, describe_access, reads_or_writes


class StreamNotWaitedFor(KindRule):
    """Two streams use the same tensor, at least one of them writes it, and neither waits for the other.

    ## What waits
    Nothing, and that is the mistake. Work on one stream runs in order; work on two streams runs in any order,
    or at the same time, whatever the order in which Python launches it.

    ## Why it costs
    Numbers are wrong, without an error, whenever the GPU happens to run it in the other order: stale or mixed
    values, more often the busier the GPU is. It may show up only on another GPU or in a longer run.

    ## Example
    ```python
    side = torch.cuda.Stream()
    x = torch.randn(1000, device="cuda")
    with torch.cuda.stream(side):
        y = x * 2
    total = y.sum()
    ```

    ## Use instead
    ```python
    side = torch.cuda.Stream()
    x = torch.randn(1000, device="cuda")
    side.wait_stream(torch.cuda.current_stream())  # x is there
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)  # y is there
    total = y.sum()
    ```
    The CPU waits for neither. `event.record(side)` after the work and `stream.wait_event(event)` are more
    precise. An event covers what was queued before it was recorded: record it after the work. A wait for an
    event that was never recorded returns at once.

    ## When it is fine
    Never, unless the values do not matter. Two streams that only read are not a race and are not
    reported."""

    code = "GAP803"
    name = "stream-not-waited-for"
    kind = "unordered"
    advice = (
        "make the second stream wait: `stream.wait_stream(other)` after the other's work and before the "
        "use, or an event recorded after that work and `stream.wait_event(event)`"
    )
    change = "make the stream wait: `wait_stream` or `wait_event`"

    def evidence(self, race: Race) -> Iterator[str]:
        yield describe_access(race.earlier, reads_or_writes(race.earlier))
        yield (
            f"{describe_access(race.later, reads_or_writes(race.later))}; nothing in between "
            f"makes {race.later.where} wait"
        )

    def wrong(self, race: Race) -> str:
        if race.earlier.writes and race.later.writes:
            return "either of the two may be the last to write"
        if race.later.writes:
            return "the first may read what the second writes"
        return "it reads stale or half-written values, whenever the first is not done by then"

    def remedy(self, race: Race) -> str:
        if race.backward:
            return (
                "call `side.wait_stream(torch.cuda.current_stream())` in the hook before the work on the "
                "side stream, and `torch.cuda.current_stream().wait_stream(side)` before gradients are used"
            )
        return self.advice
