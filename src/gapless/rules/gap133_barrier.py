"""GAP133."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import is_below, short_path

_FILE = "torch/distributed/distributed_c10d.py"


class Barrier(WaitRule):
    """`torch.distributed.barrier()`: the CPU waits for its own GPU and for all other ranks.

    ## What waits
    With NCCL, a barrier is a small collective after which the CPU waits for the stream: for everything
    queued on this GPU, and for the slowest rank.

    ## Why it costs
    The ranks are already in step with one another: each collective in training (the gradients'
    all-reduce) makes the GPUs wait for each other without the CPU. A barrier in the loop empties the
    queue of every rank.

    ## Example
    ```python
    for step in range(10):
        train_step()
        torch.distributed.barrier()
    ```

    ## Use instead
    ```python
    for step in range(10):
        train_step()
    ```
    Collectives already order the ranks. If only one rank writes a file, let the others continue, and put
    one barrier where the file is read.

    ## When it is fine
    In set-up (one rank downloads, the others wait), and around a checkpoint.
    """

    code = "GAP133"
    name = "barrier"
    priority = 100
    advice = "remove it from the loop: collectives order the ranks on the GPU, without the CPU"
    change = "move the barrier out of the loop"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "explicit" and (
            "barrier" in site.call or is_below(site, "torch", "barrier", _FILE)
        )

    def remedy(self, site: Site) -> str:
        for frame in site.library_frames:
            if frame.library not in ("torch", "python"):
                return (
                    f"{frame.library} calls it, at {short_path(frame)} ({frame.function}): call the code "
                    "that leads there once per epoch instead of once per step, or look for an option that "
                    "does not synchronize the ranks"
                )
        return self.advice
