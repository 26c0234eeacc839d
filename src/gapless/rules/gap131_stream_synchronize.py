"""GAP131."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import advise_for_library

_OPERATORS = {
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cudaEventElapsedTime",
}


class StreamSynchronize(WaitRule):
    """`Stream.synchronize()` or `Event.synchronize()`: the CPU waits for one stream, or for one point in it.

    ## What waits
    `stream.synchronize()` returns when the stream is empty, `event.synchronize()` when the work recorded
    before the event is done.

    ## Why it costs
    The CPU usually waits for the most recent work, so the queue is empty afterwards and the GPU idles.
    To read the time between two events in each step, the CPU has to wait for the second one in each
    step.

    ## Example
    ```python
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for step in range(10):
        start.record()
        train_step()
        end.record()
        end.synchronize()
        print(start.elapsed_time(end))
    ```

    ## Use instead
    ```python
    pairs = []
    for step in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        train_step()
        end.record()
        pairs.append((start, end))
        while pairs and pairs[0][1].query():
            first, last = pairs.pop(0)
            print(first.elapsed_time(last))
    ```
    `query()` checks without waiting. If another stream needs the result, `other.wait_event(event)` makes
    that stream wait instead of the CPU.

    ## When it is fine
    Before the CPU touches pinned memory that a copy uses: without the wait there is a race (`GAP801`,
    `GAP802`). If the event is of an earlier step, with most of a step's work launched since, the wait only
    orders the accesses and stalls nothing: it is not counted. Two buffers with an event each, or
    `gapless.ops.read_later`, make it so.
    """

    code = "GAP131"
    name = "stream-synchronize"
    advice = (
        "`event.query()` checks without waiting; `stream.wait_event(event)` makes a stream wait instead of "
        "the CPU; read timings a few steps later, when they are complete"
    )
    change = "use `query()` or `wait_event` instead of `synchronize()`"

    def matches(self, site: Site) -> bool:
        return site.operator in _OPERATORS

    def remedy(self, site: Site) -> str:
        return advise_for_library(site, _OF_A_COPY if site.detail == "copy" else self.advice)

    def known_change(self, site: Site) -> str:
        of_own_copy = site.detail == "copy" and site.deciding_frame is None
        return "wait for the copy of an earlier step, not of this one" if of_own_copy else ""


_OF_A_COPY = (
    "the copy must be done before the CPU touches its memory, so keep a wait, but for the copy of an earlier "
    "step, which is done long since: two buffers in turn, each with an event, or `gapless.ops.read_later`, "
    "whose values arrive a few steps later"
)
