"""GAP122."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._by_use import advise_by_use, change_by_use
from gapless.rules._code import Code
from gapless.rules._places import advise_for_library, parse_waiting_line

_STRIDED = (
    "this part of a pinned tensor is filled through pageable memory, because its elements are not "
    "contiguous: copy with `non_blocking=True` into a pinned tensor with the shape of the part"
)


class DeviceToHostCopy(WaitRule):
    """`.cpu()`, `.to("cpu")`: the values are copied to the CPU, which waits until they have arrived.

    ## What waits
    `.cpu()`, `.to("cpu")`, `.numpy(force=True)` and `host.copy_(device_tensor)` wait for everything queued
    before the copy, and then for the copy. `.type(torch.LongTensor)` is such a copy too: it names a CPU
    type.

    ## Why it costs
    It is a read of many values at once. The CPU stops until the GPU has caught up, and what the CPU
    does with the values afterwards (NumPy, lists, plots) happens while the GPU idles.

    ## Example
    ```python
    outputs = []
    for step in range(10):
        outputs.append(model(x).detach().cpu())
    ```

    ## Use instead
    ```python
    outputs = []
    for step in range(10):
        outputs.append(model(x).detach())
    outputs = torch.stack(outputs).cpu()  # once
    ```
    Collect on the GPU and copy once. If the GPU does not have enough memory, copy with
    `.to("cpu", non_blocking=True)` and record a `torch.cuda.Event`: read the values only once the event's
    `query()` is true; `gapless.ops.read_later` does that. An index or a mask that is needed on the GPU
    need not go through the CPU: `x.type(torch.long)` converts where the tensor is.

    ## When it is fine
    Every N steps, after the loop, or in evaluation that runs rarely.
    """

    code = "GAP122"
    name = "device-to-host-copy"
    advice = (
        "collect on the GPU and copy once after many steps; or copy without waiting and read the value a "
        "few steps later: `gapless.ops.read_later(value=x)`"
    )
    change = "copy to the CPU once, after many steps"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "d2h"

    def known_change(self, site: Site) -> str:
        return "copy into a whole pinned tensor" if site.detail == "strided" else change_by_use(site)

    def remedy(self, site: Site) -> str:
        if site.detail == "strided":
            return _STRIDED
        code = parse_waiting_line(site)
        if (code is None or not _converts(code)) and (by_use := advise_by_use(site, code)):
            return by_use
        return (_advise_copy(code) if code is not None else "") or advise_for_library(site, self.advice)


def _converts(code: Code) -> bool:
    """Whether the line names a CPU type only to convert."""
    return code.only_call("type") is not None


def _advise_copy(code: Code) -> str:
    call = code.only_call("type")
    if call is not None and len(call.args) == 1 and code.text(call.args[0]) == "torch.LongTensor":
        return f"`{code.subject(call)}.type(torch.long)` converts on the GPU" if code.subject(call) else ""
    call = code.only_call("cpu")
    if (
        call is None
        or not isinstance(call.func, ast.Attribute)
        or call.args
        or not (subject := code.subject(call))
    ):
        return ""
    appended = code.only_call("append", "extend")
    if appended is not None and appended.args == [call]:
        kept = code.replace((call, code.kept(call.func.value)))
        if kept:
            return f"collect on the GPU: `{kept}`, and copy all at once after many steps"
    return (
        f"keep `{subject}` on the GPU and copy once after many steps; or copy without waiting and read the "
        f"value a few steps later: `gapless.ops.read_later(value={subject})`"
    )
