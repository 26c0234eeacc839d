"""GAP126."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import deciding_frame, is_below

_FILES = ("torch/serialization.py", "torch/distributed/checkpoint/", "torch/storage.py")
_LOAD_ONCE = "load a checkpoint once, before the loop"
_FUNCTIONS = ("__reduce_ex__", "_reduce_ex_internal")


class BlockingCheckpoint(WaitRule):
    """Saving or loading GPU tensors: each of them is copied between GPU and CPU while the CPU waits.

    ## What waits
    `torch.save` (and pickling, and `save_pretrained`) copies each tensor of the state to the CPU, one
    blocking copy after the other. Loading with `map_location="cuda"` copies them back the same way.

    ## Why it costs
    Training stops while everything is copied and written to disk, and a checkpoint with Adam's state is
    three times the size of the model.

    ## Example
    ```python
    for step in range(1000):
        train_step()
        if step % 500 == 499:
            torch.save(model.state_dict(), path)
    ```

    ## Use instead
    ```python
    state = model.state_dict()
    host = {name: torch.empty_like(value, device="cpu", pin_memory=True) for name, value in state.items()}
    for step in range(1000):
        train_step()
        if step % 500 == 499:
            for name, value in model.state_dict().items():
                host[name].copy_(value, non_blocking=True)
            torch.cuda.current_stream().synchronize()  # one sync for all of them
            torch.save(host, path)
    ```
    Pinned buffers that you keep make the copies fast and asynchronous, and a thread can write the file
    while training continues. `torch.distributed.checkpoint.async_save` does both.

    ## When it is fine
    At the end, or so rarely that the time does not show: once in thousands of steps.
    """

    code = "GAP126"
    name = "blocking-checkpoint"
    priority = 100
    advice = (
        "save less often, or copy into pinned buffers that you keep, and let a thread write the file "
        "(`torch.distributed.checkpoint.async_save` does both)"
    )
    change = "save less often, or with `async_save`"

    def matches(self, site: Site) -> bool:
        if site.mechanism not in ("d2h", "h2d", "read"):
            return False
        if (
            is_below(site, "safetensors")
            or any(is_below(site, "torch", file=file) for file in _FILES)
            or is_below(site, "torch", "GradScaler.state_dict")
            or _is_loading(site)
        ):
            return True
        pickled = any(is_below(site, "torch", name, "torch/_tensor.py") for name in _FUNCTIONS)
        return pickled and deciding_frame(site) is None

    def remedy(self, site: Site) -> str:
        return _LOAD_ONCE if _is_loading(site) else self.advice

    def known_change(self, site: Site) -> str:
        return _LOAD_ONCE if _is_loading(site) else ""


def _is_loading(site: Site) -> bool:
    return (
        is_below(site, "torch", "load", "torch/serialization.py")
        or is_below(site, "torch", "load_state_dict", "torch/nn/modules/module.py")
        or is_below(site, "torch", "load_state_dict", "torch/optim/optimizer.py")
    )
