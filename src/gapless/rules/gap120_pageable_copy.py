"""GAP120."""

from __future__ import annotations

import ast

from gapless.model import Rule, Site
from gapless.rules._code import Code, keyword
from gapless.rules._places import below, in_library, operator, own_code

_COPIES = {"_to_copy", "copy_", "_foreach_copy_"}


class PageableCopy(Rule):
    """A copy to the device from pageable memory: the host waits while the data is staged.

    ## What waits
    The device reads host memory by itself only where it is pinned (page-locked). From ordinary memory the
    driver first copies the data into pinned buffers of its own, and the host waits while it does. Without
    `non_blocking=True`, PyTorch also waits for everything queued on the stream; with it, the staging
    remains: the flag makes a copy asynchronous only from pinned memory.

    ## Why it costs
    The batch is copied at the beginning of the step. While the host stages it, nothing new is launched, and
    a copy that could have run beside the previous step's kernels does not.

    ## Example
    ```python
    for inputs, labels in DataLoader(dataset, batch_size=4):
        inputs = inputs.to(device, non_blocking=True)
    ```

    ## Use instead
    ```python
    for inputs, labels in DataLoader(dataset, batch_size=4, pin_memory=True):
        inputs = inputs.to(device, non_blocking=True)
    ```
    Both are needed: `pin_memory=True` in the DataLoader, whose own thread does the pinning, and
    `non_blocking=True` at the copy. A buffer of your own can be allocated pinned once and filled in each
    step, but only after an event recorded behind its last copy is complete. Calling `.pin_memory()` in the
    step only moves the copy to another line of the host.

    ## When it is fine
    In set-up: data or a model that is copied once.
    """

    code = "GAP120"
    name = "pageable-copy"
    advice = (
        "copy from pinned memory with `non_blocking=True` (`DataLoader(..., pin_memory=True)` pins "
        "batches in its own thread), or create the tensor on the device"
    )

    def matches(self, site: Site) -> bool:
        return site.mechanism == "h2d" and (site.detail == "pageable" or operator(site) in _COPIES)

    def remedy(self, site: Site) -> str:
        if below(site, "accelerate", "send_to_device"):
            return (
                "let the DataLoader pin its batches (`pin_memory=True`), and copy them without waiting: "
                "`Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))`"
            )
        code = own_code(site)
        return (_moved(code) if code is not None else "") or in_library(site, self.advice)


def _moved(code: Code) -> str:
    call = code.only_call("to", "cuda")
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    subject, whole = code.subject(call), code.text(call)
    if not subject or not whole.endswith(")"):
        return ""
    if keyword(call, "non_blocking") is not None:
        return (
            f"`{subject}` must be in pinned memory for `non_blocking=True` to help: "
            "`DataLoader(..., pin_memory=True)`"
        )
    comma = ", " if call.args or call.keywords else ""
    return (
        f"`{whole[:-1].rstrip().rstrip(',')}{comma}non_blocking=True)` with `{subject}` in pinned memory "
        "(`DataLoader(..., pin_memory=True)`)"
    )
