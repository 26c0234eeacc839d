"""GAP127."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._code import Code
from gapless.rules._places import advise_for_library, deciding_frame, parse_user_line


class ModuleMoved(WaitRule):
    """A module moved between CPU and GPU: one blocking copy for each parameter and buffer.

    ## What waits
    `module.to(device)`, `.cuda()` and `.cpu()` copy parameters and buffers one by one, each with a copy
    that blocks. If the module is already there, nothing is copied and nothing waits.

    ## Why it costs
    Once, in set-up, it does not matter. In the loop it does: a loss module created in each step and
    moved with its weights, a model sent to the CPU to be saved, or a teacher that is fetched and sent
    back.

    ## Example
    ```python
    for step in range(10):
        criterion = nn.CrossEntropyLoss(weight=class_weights).to(device)
        loss = criterion(logits, y)
    ```

    ## Use instead
    ```python
    criterion = nn.CrossEntropyLoss(weight=class_weights).to(device)  # once
    for step in range(10):
        loss = criterion(logits, y)
    ```
    Create and move modules before the loop, or create them there:
    `with torch.device(device): model = Net()`. To save a model, `state_dict()` is enough: the model itself
    need not leave the GPU.

    ## When it is fine
    In set-up, and where a part of the model must be kept on the CPU because the GPU does not have
    enough memory for it."""

    code = "GAP127"
    name = "module-moved"
    priority = 60
    advice = "create the module and move it once, before the loop"
    change = "create and move the module once, before the loop"

    def matches(self, site: Site) -> bool:
        return site.mechanism in ("h2d", "d2h") and (
            site.detail == "module"
            or any(
                frame.library == "torch"
                and frame.file.replace("\\", "/").endswith("torch/nn/modules/module.py")
                and frame.function.rpartition(".")[2] in ("to", "cuda", "cpu", "_apply")
                for frame in site.library_frames
            )
        )

    def remedy(self, site: Site) -> str:
        code = parse_user_line(site)  # wrappers of `Module.to` in libraries are the user's own doing
        frame = deciding_frame(site)
        passed_on = frame is not None and frame.function.rpartition(".")[2] in ("to", "cuda", "cpu")
        advice = self.advice if passed_on else advise_for_library(site, self.advice)
        return (_advise_move(code) if code is not None else "") or advice


def _advise_move(code: Code) -> str:
    call = code.only_call("to", "cuda", "cpu")
    subject = code.subject(call) if call is not None else ""
    return f"create and move `{subject}` once, before the loop" if subject else ""
