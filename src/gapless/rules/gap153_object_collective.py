"""GAP153."""

from __future__ import annotations

from gapless.model import Site, WaitRule

_FILE = "torch/distributed/distributed_c10d.py"


class ObjectCollective(WaitRule):
    """`all_gather_object`, `broadcast_object_list` and similar calls: pickled bytes are sent through the GPU.

    ## What waits
    With NCCL, a Python object is pickled, copied to the GPU, sent with its size, and copied back on the
    other ranks. Each of these copies blocks, and the CPU reads the sizes of all ranks before it can
    allocate anything.

    ## Why it costs
    One call causes several syncs on this GPU and on all ranks. That is a high price for collecting a
    few numbers for the log.

    ## Example
    ```python
    losses = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(losses, {"loss": loss.detach()})
    ```

    ## Use instead
    ```python
    mean = loss.detach().clone()
    torch.distributed.all_reduce(mean, op=torch.distributed.ReduceOp.AVG)
    ```
    Send numbers as tensors: put them into one tensor and reduce or gather that; nothing waits until
    the result is read. For real objects, use a second group on the CPU:
    `group = torch.distributed.new_group(backend="gloo")`.

    ## When it is fine
    In set-up, around a checkpoint, or once per epoch.
    """

    code = "GAP153"
    name = "object-collective"
    priority = 100
    advice = (
        "put the numbers into one tensor and reduce or gather that; send objects through a CPU group "
        '(`torch.distributed.new_group(backend="gloo")`)'
    )
    change = "reduce one tensor instead of pickled objects"

    def matches(self, site: Site) -> bool:
        return site.mechanism in ("read", "h2d", "d2h") and any(
            frame.library == "torch"
            and frame.file.replace("\\", "/").endswith(_FILE)
            and "object" in frame.function.rpartition(".")[2]
            for frame in site.library_frames
        )
