"""GAP155."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import is_below

_LIBRARIES = (
    "aim", "clearml", "comet_ml", "loguru", "mlflow", "neptune", "rich", "tensorboard", "tensorboardX",
    "tqdm", "trackio", "wandb",
)  # fmt: skip


class LoggerRead(WaitRule):
    """A GPU tensor given to a logger or a progress bar: it is read on the CPU when it is logged.

    ## What waits
    `SummaryWriter.add_scalar("loss", loss)`, `wandb.log({"loss": loss})` and `bar.set_postfix(loss=loss)`
    take a tensor and turn it into a number or into text: a read like `.item()`, one for each value.

    ## Why it costs
    If they are logged in each step, the CPU waits for them in each step, usually right after backward. A
    display that updates ten times a second need not be read a thousand times.

    ## Example
    ```python
    for step in range(100):
        loss = train_step()
        writer.add_scalar("loss", loss, step)
    ```

    ## Use instead
    ```python
    losses = []
    for step in range(100):
        losses.append(train_step().detach())
        if step % 50 == 49:
            for back, value in enumerate(torch.stack(losses).tolist()):  # one sync in 50 steps
                writer.add_scalar("loss", value, step - len(losses) + 1 + back)
            losses.clear()
    ```
    No point of the curve is lost: the values stay on the GPU and are read together later.

    ## When it is fine
    Every N steps, or once per epoch.
    """

    code = "GAP155"
    name = "logger-read"
    priority = 100
    advice = (
        "collect the tensors (`losses.append(loss.detach())`) and log them together every N steps: "
        "`torch.stack(losses).tolist()` is one sync, and `gapless.ops.LogBuffer` needs none"
    )
    change = "collect on the GPU, log together every N steps"

    def matches(self, site: Site) -> bool:
        if site.mechanism not in ("read", "d2h"):
            return False
        return any(is_below(site, library) for library in _LIBRARIES) or is_below(
            site, "torch", file="torch/utils/tensorboard/"
        )
