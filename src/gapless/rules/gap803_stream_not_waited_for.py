"""GAP803."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.race import Race
from gapless.rules._races import KindRule, does, side


class StreamNotWaitedFor(KindRule):
    """Two streams use the same tensor, at least one of them writes it, and neither waits for the other.

    ## What waits
    Nothing, and that is the mistake. Work of one stream runs in order, work of two streams runs in any order,
    or at once. The order in which Python launches it says nothing.

    ## Why it costs
    Numbers are wrong, without an error, whenever the GPU happens to run it in the other order: stale or mixed
    values, more often the busier the GPU is. It may show on another GPU or in a longer run only.

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
    The CPU waits for neither. `event.record(side)` behind the work and `stream.wait_event(event)` are finer.
    An event stands for what was queued before it was recorded: record it behind the work. A wait for an event
    that was never recorded returns at once.

    ## When it is fine
    Never, unless the values do not matter. Both streams reading is no race and is not reported.
    """

    code = "GAP803"
    name = "stream-not-waited-for"
    kind = "unordered"
    advice = (
        "make the second stream wait: `stream.wait_stream(other)` behind the other's work and before the "
        "use, or an event recorded behind that work and `stream.wait_event(event)`"
    )
    change = "make the stream wait: `wait_stream` or `wait_event`"

    def told(self, race: Race) -> Iterator[str]:
        yield side(race.earlier, does(race.earlier))
        yield f"{side(race.later, does(race.later))}; nothing in between makes {race.later.where} wait"

    def wrong(self, race: Race) -> str:
        if race.earlier.writes and race.later.writes:
            return "either of the two may be the last to write"
        if race.later.writes:
            return "the first may read what the second writes"
        return "it reads stale or half-written values, as often as the first is not done by then"

    def remedy(self, race: Race) -> str:
        if race.backward:
            return (
                "call `side.wait_stream(torch.cuda.current_stream())` in the hook before the work on the "
                "side stream, and `torch.cuda.current_stream().wait_stream(side)` before gradients are used"
            )
        return self.advice
