"""GAP151."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import below, deciding_frame


class OptimizerRead(WaitRule):
    """An optimizer or a scheduler reads a GPU tensor on the CPU: the loss, the learning rate, a count.

    ## What waits
    `ReduceLROnPlateau.step(loss)` and `LBFGS.step(closure)` turn the loss into a `float`. A learning rate
    that is a tensor on the GPU is read by optimizers that are neither fused nor capturable; so are step
    counts on the GPU, which a checkpoint of a capturable optimizer can contain. `Adafactor` reads norms
    of its parameters, and `ASGD` its own rates.

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
    Keep the learning rate a Python number; where it must be a tensor (CUDA graphs), use `capturable=True`
    or `fused=True`. Ordinary optimizers keep their step count on the CPU and wait for nothing.

    ## When it is fine
    Once per epoch; and in `LBFGS`, whose line search decides with the value.
    """

    code = "GAP151"
    name = "optimizer-read"
    priority = 100
    advice = (
        "keep the learning rate a Python number; if it must be a tensor, give the optimizer "
        "`capturable=True` or `fused=True`, if it has one of these options"
    )
    change = "keep the learning rate a Python number"

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
        if below(site, "torch", file="torch/optim/lr_scheduler.py"):
            return (
                "give the scheduler its metric once per epoch, not in each step: it converts it to a `float`"
            )
        if below(site, "torch", file="torch/optim/lbfgs.py"):
            return (
                "LBFGS reads the loss in each iteration: only fewer iterations (`max_iter`) mean fewer syncs"
            )
        if below(site, "torch", file="torch/optim/_adafactor.py"):
            return (
                "Adafactor reads the norm of each parameter on the CPU; an optimizer such as AdamW does not"
            )
        if below(site, "torch", file="torch/optim/asgd.py"):
            return "ASGD reads its own rates for each parameter; `ASGD(..., capturable=True)` does not"
        return self.advice

    def known_change(self, site: Site) -> str:
        if below(site, "torch", file="torch/optim/lr_scheduler.py"):
            return "give the scheduler its metric once per epoch"
        if below(site, "torch", file="torch/optim/lbfgs.py"):
            return "fewer iterations of LBFGS: `max_iter`"
        if below(site, "torch", file="torch/optim/_adafactor.py"):
            return "use an optimizer that reads no norms, such as AdamW"
        if below(site, "torch", file="torch/optim/asgd.py"):
            return "give ASGD `capturable=True`"
        return ""
