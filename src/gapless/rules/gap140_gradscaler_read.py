"""GAP140."""

from __future__ import annotations

from gapless.model import Site, SourceLine, WaitRule
from gapless.rules._places import deciding_frame, is_below, short_path

_ROUNDS = "; it computes in another order, so parameters may differ in their last bits"
_WITHOUT = "autocast to bfloat16, without a scaler"
_FILES = ("torch/amp/grad_scaler.py", "torch/distributed/fsdp/sharded_grad_scaler.py")


class GradScalerRead(WaitRule):
    """`GradScaler.step` reads on the CPU whether a gradient has overflowed: one sync per optimizer and step.

    ## What waits
    `scaler.step(optimizer)` must not take the step if a gradient is infinite or NaN. With an ordinary
    optimizer it decides this on the CPU, so it reads the flag `found_inf`, which is the result of the
    whole backward pass. `scaler.get_scale()` reads the scale in the same way.

    ## Why it costs
    The flag is known only when backward has finished. Only then are the optimizer's many small kernels
    launched, while the GPU idles.

    ## Example
    ```python
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    ```

    ## Use instead
    ```python
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(4):
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    ```
    A fused optimizer (`Adam`, `AdamW`, `SGD`) takes the flag as a tensor and skips the step on the GPU; most
    others have no such form. It computes in another order, so that parameters differ in their last bits. On
    GPUs with bfloat16, autocast to bfloat16 needs no scaler at all.

    ## When it is fine
    Where the step is long compared with the optimizer: the gap is the time to launch the
    optimizer's first kernels."""

    code = "GAP140"
    name = "gradscaler-read"
    priority = 100
    advice = (
        "an optimizer with `fused=True` (Adam, AdamW and SGD have it) takes the overflow flag as a tensor "
        "and skips the step on the GPU; autocast to bfloat16 needs no scaler at all"
    )
    change = "use an optimizer with `fused=True`, or bfloat16"

    def matches(self, site: Site) -> bool:
        frame = deciding_frame(site)  # what the optimizer reads below the scaler is the optimizer's doing
        return (
            site.mechanism == "read"
            and frame is not None
            and frame.file.replace("\\", "/").endswith(_FILES)
            and not is_below(site, "torch", "GradScaler.state_dict")
        )

    def remedy(self, site: Site) -> str:
        if _reads_scale(site):
            asks = _frame_reading_scale(site)
            if asks is not None:
                return (
                    f"{asks.library} reads the scale at {short_path(asks)} ({asks.function}): autocast to "
                    "bfloat16 needs no scaler at all"
                )
            return (
                "read the scale only where it is logged, every N steps (`get_scale()` copies it to the CPU)"
            )
        name, _, form = site.detail.partition(", ")
        if form:
            return (
                f"give {name} `fused=True`: it takes the overflow flag as a tensor and skips the step on the "
                f"GPU{_ROUNDS}; autocast to bfloat16 needs no scaler at all"
            )
        if name:
            return (
                f"{name} has no form that skips the step on the GPU (Adam, AdamW and SGD do, with "
                "`fused=True`): autocast to bfloat16 needs no scaler at all"
            )
        return self.advice

    def known_change(self, site: Site) -> str:
        if _reads_scale(site):
            return "call `get_scale()` every N steps" if _frame_reading_scale(site) is None else _WITHOUT
        name, _, form = site.detail.partition(", ")
        if not name:
            return ""
        return f"give {name} `fused=True`" if form else _WITHOUT


def _frame_reading_scale(site: Site) -> SourceLine | None:
    """Return the library frame that reads the scale; None if the user's own line does."""
    return next((frame for frame in site.library_frames if frame.library not in ("torch", "python")), None)


def _reads_scale(site: Site) -> bool:
    return any(is_below(site, "torch", "get_scale", file) for file in _FILES)
