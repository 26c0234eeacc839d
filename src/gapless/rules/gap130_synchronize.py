"""GAP130."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import advise_for_library


class Synchronize(WaitRule):
    """`torch.cuda.synchronize()`: the CPU waits until all streams of the GPU are empty.

    ## What waits
    `torch.cuda.synchronize()` and `torch.accelerator.synchronize()` return when every kernel and every copy
    on the GPU is done, on all streams.

    ## Why it costs
    Afterwards the GPU has nothing to do: it idles until the CPU has launched the next kernels. It is
    often left over from a time measurement, or comes next to a read that syncs anyway.

    ## Example
    ```python
    for step in range(10):
        begin = time.perf_counter()
        train_step()
        torch.cuda.synchronize()
        print(time.perf_counter() - begin)
    ```

    ## Use instead
    ```python
    events = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
    events[0].record()
    for step in range(10):
        train_step()
        events[step + 1].record()
    torch.cuda.synchronize()  # once, after the loop
    times = [a.elapsed_time(b) for a, b in zip(events, events[1:])]
    ```
    Kernels on one stream run in order without it. Between streams, `stream.wait_stream(other)` or
    `stream.wait_event(event)` order the work on the GPU, and the CPU does not wait. What the CPU reads after
    a copy with `non_blocking=True` has to arrive first: `event.record()` after the copy and
    `event.synchronize()` before the read wait for that copy only.

    ## When it is fine
    Before the first and after the last measurement of a benchmark, at the end of the program, and while
    searching for the kernel that fails.
    """

    code = "GAP130"
    name = "synchronize"
    advice = (
        "remove it: work on one stream already runs in order; `wait_stream` and `wait_event` order streams "
        "without the CPU, and `torch.cuda.Event(enable_timing=True)` measures time without it; where the "
        "CPU reads what `non_blocking=True` copied, wait for that copy alone: `event.synchronize()`"
    )
    change = "remove the `synchronize()`"

    def matches(self, site: Site) -> bool:
        return site.operator in ("cudaDeviceSynchronize", "cuCtxSynchronize")

    def remedy(self, site: Site) -> str:
        return advise_for_library(site, self.advice)
