"""GAP151."""

from __future__ import annotations

import re
from typing import NamedTuple

from gapless.model import Site, WaitRule
from gapless.rules._places import deciding_frame, is_below


class OptimizerRead(WaitRule):
    """An optimizer or a scheduler reads a GPU tensor on the CPU: the loss, the learning rate, a count.

    ## What waits
    `ReduceLROnPlateau.step(loss)` and `LBFGS.step(closure)` turn the loss into a `float`. Optimizers that are
    neither fused nor capturable read their step counts, which belong on the CPU: a checkpoint that is loaded
    with `map_location="cuda"` puts them on the GPU, and so does code that moves all of an optimizer's state.
    They read a learning rate, or betas, that are tensors on the GPU, too. `Adafactor` reads norms of its
    parameters, and `ASGD` its own rates.

    ## Why it costs
    `optimizer.step()` follows backward: whatever it reads, the CPU waits for the whole step. Reads inside
    the loop over parameters sync once per parameter.

    ## Example
    ```python
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for step in range(4):
        loss = train_step()
        scheduler.step(loss.detach())
    ```

    ## Use instead
    ```python
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    total = torch.zeros((), device=device)
    for step in range(4):
        total += train_step().detach()
    scheduler.step(total / 4)  # once per epoch
    ```
    Load an optimizer's state with `torch.load(..., map_location="cpu")`: `load_state_dict` moves the moments
    to the GPU and leaves the step counts on the CPU. Keep the learning rate and betas Python numbers; where
    they must be tensors (CUDA graphs), use `capturable=True` or `fused=True`.

    ## When it is fine
    Once per epoch; and in `LBFGS`, whose line search decides with the value.
    """

    code = "GAP151"
    name = "optimizer-read"
    priority = 100
    advice = (
        "keep what the optimizer reads on the CPU, or give the optimizer `capturable=True` or `fused=True`, "
        "if it has one of these options"
    )
    change = "keep what the optimizer reads on the CPU"

    def matches(self, site: Site) -> bool:
        frame = deciding_frame(site)
        return (
            site.mechanism == "read"
            and frame is not None
            and frame.library == "torch"
            and "torch/optim/" in frame.file.replace("\\", "/")
            and not frame.file.endswith("swa_utils.py")
        )

    def remedy(self, site: Site) -> str:
        if is_below(site, "torch", function="ReduceLROnPlateau.step"):
            return (
                "give the scheduler its metric once per epoch, not in each step: it converts it to a `float`"
            )
        read = _advise_read(site)
        if read is not None:
            return read.remedy
        if is_below(site, "torch", file="torch/optim/lr_scheduler.py"):
            return _NUMBER.format("the learning rate") + " while the scheduler changes it"
        if is_below(site, "torch", file="torch/optim/lbfgs.py"):
            return (
                "LBFGS reads the loss in each iteration: only fewer iterations (`max_iter`) mean fewer syncs"
            )
        if is_below(site, "torch", file="torch/optim/_adafactor.py"):
            return (
                "Adafactor reads the norm of each parameter on the CPU; an optimizer such as AdamW does not"
            )
        if is_below(site, "torch", file="torch/optim/asgd.py"):
            return "ASGD reads its own rates for each parameter; `ASGD(..., capturable=True)` does not"
        return self.advice

    def known_change(self, site: Site) -> str:
        if is_below(site, "torch", function="ReduceLROnPlateau.step"):
            return "give the scheduler its metric once per epoch"
        read = _advise_read(site)
        if read is not None:
            return read.change
        if is_below(site, "torch", file="torch/optim/lr_scheduler.py"):
            return _NUMBER.format("the learning rate")
        if is_below(site, "torch", file="torch/optim/lbfgs.py"):
            return "fewer iterations of LBFGS: `max_iter`"
        if is_below(site, "torch", file="torch/optim/_adafactor.py"):
            return "use an optimizer that reads no norms, such as AdamW"
        if is_below(site, "torch", file="torch/optim/asgd.py"):
            return "give ASGD `capturable=True`"
        return ""


_DETAIL = re.compile(
    r"(?P<holder>state|param_groups)\['(?P<key>\w+)'\] of \w+(?: \(takes (?P<takes>[\w, ]+)\))?"
)
_NUMBER = "keep {} a Python number"
_NAMES = {"lr": "the learning rate", "betas": "the betas"}
_CREATES_STATE_ON_GPU = " of ASGD"
"""An optimizer that creates all of its state on the GPU by itself."""


class _ReadAdvice(NamedTuple):
    """Advice on what an optimizer reads: a sentence, and a few words."""

    remedy: str
    change: str


def _advise_read(site: Site) -> _ReadAdvice | None:
    """Return advice on the tensor that is read; None if it was not recorded or belongs on the GPU."""
    match = _DETAIL.fullmatch(site.detail)
    if match is None or (match["holder"] == "state" and _CREATES_STATE_ON_GPU in site.detail):
        return None
    key = match["key"]
    options = " or ".join(f"`{option}=True`" for option in (match["takes"] or "").split(", ") if option)
    otherwise = f", or give the optimizer {options}" if options else ""
    if match["holder"] == "param_groups":
        change = _NUMBER.format(_NAMES.get(key, f"`{key}`"))
        return _ReadAdvice(f"{change}{otherwise}", change)
    if key != "step":
        remedy = f"give the optimizer {options}" if options else "use an optimizer that keeps no such number"
        return _ReadAdvice(
            f"`load_state_dict` moves `{key}` to the GPU, where each step reads it: {remedy}", remedy
        )
    return _ReadAdvice(
        "leave the step counts (`state['step']`) on the CPU: load the checkpoint with `torch.load(..., "
        'map_location="cpu")`, since `load_state_dict` moves the rest of the state to the GPU; and move '
        f"none of it by hand{otherwise}",
        "leave the optimizer's `step` on the CPU",
    )
