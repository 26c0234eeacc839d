"""GAP123."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._code import Code, add_option, sets_blocking
from gapless.rules._places import advise_for_library, is_below, parse_waiting_line


class BlockingPinnedCopy(WaitRule):
    """A copy from pinned memory without `non_blocking=True`: the CPU waits although it need not.

    ## What waits
    The source is pinned, so the GPU could fetch it without the CPU. Without `non_blocking=True`, PyTorch
    still waits for the stream after the copy, and so for everything queued before it.

    ## Why it costs
    This is the batch of the next step: the CPU waits until the current step is done, and only then begins
    to launch the next one. Half the benefit of pinning is lost.

    ## Example
    ```python
    for inputs, labels in pinned_loader:
        inputs, labels = inputs.to(device), labels.to(device)
    ```

    ## Use instead
    ```python
    for inputs, labels in pinned_loader:
        inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    ```
    Work on the same stream sees the data in order, so nothing else is needed. Only your own pinned buffer
    that you refill needs an event, so that it is not overwritten before it has been copied.

    ## When it is fine
    In set-up.
    """

    code = "GAP123"
    name = "blocking-pinned-copy"
    priority = 60
    advice = "add `non_blocking=True`: the source is pinned already"
    change = "copy with `non_blocking=True`"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "h2d" and site.detail == "pinned"

    def known_change(self, site: Site) -> str:
        if is_below(site, "transformers"):
            return '`accelerator_config={"non_blocking": True}`'
        return "`DataLoaderConfiguration(non_blocking=True)`" if is_below(site, "accelerate") else ""

    def remedy(self, site: Site) -> str:
        if is_below(site, "transformers"):
            return (
                '`TrainingArguments(accelerator_config={"non_blocking": True})` lets the Trainer copy '
                "its pinned batches without waiting"
            )
        if is_below(site, "accelerate"):
            return (
                "`Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))` copies the "
                "pinned batches without waiting"
            )
        code = parse_waiting_line(site)
        return (_advise_non_blocking(code) if code is not None else "") or advise_for_library(
            site, self.advice
        )


def _advise_non_blocking(code: Code) -> str:
    changes: list[tuple[ast.expr, str]] = []
    for call in code.calls("to", "cuda"):
        if isinstance(call.func, ast.Attribute) and not sets_blocking(call):
            changes.append((call, add_option(code, call, "non_blocking=True")))
    if not changes or not all(new for _, new in changes):
        return ""
    changed = changes[0][1] if len(changes) == 1 else code.replace(*changes)
    return f"`{changed}`: the source is pinned already" if changed else ""
