"""GAP154."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import deciding_frame, is_below, short_path

_LIBRARIES = ("lightning", "pytorch_lightning", "lightning_fabric")
_KNOWN = (
    ("callbacks/early_stopping.py", "check the criterion once per epoch (`check_on_train_epoch_end`)"),
    (
        "callbacks/model_checkpoint.py",
        "write checkpoints less often (`every_n_train_steps`, `every_n_epochs`)",
    ),
    ("loops/utilities.py", "`Trainer(detect_anomaly=False)` disables the check of the loss"),
    ("pytorch/utilities/data.py", "it checks the length of the loader once, in set-up"),
)
_CHANGES = {
    "callbacks/early_stopping.py": "check the criterion of early stopping once per epoch",
    "callbacks/model_checkpoint.py": "write checkpoints less often: `every_n_train_steps`",
    "loops/utilities.py": "`Trainer(detect_anomaly=False)`",
}


class LightningRead(WaitRule):
    """Lightning reads logged values on the CPU: for the progress bar in each step, for loggers in some.

    ## What waits
    A value logged with `self.log(..., prog_bar=True)` is turned into a number at the end of each step,
    whether or not the bar is drawn, and once more when it is. Loggers get numbers every
    `log_every_n_steps`. Early stopping, checkpoints and `detect_anomaly` read what they watch.

    ## Why it costs
    The read is at the end of each step and waits for all of it; each value in the bar is a separate sync.

    ## Example
    ```python
    class Model(LightningModule):
        def training_step(self, batch, index):
            loss = self.loss(batch)
            self.log("loss", loss, prog_bar=True)
            return loss
    ```

    ## Use instead
    ```python
    class Model(LightningModule):
        def training_step(self, batch, index):
            loss = self.loss(batch)
            self.log("loss", loss)
            return loss
    ```
    Without `prog_bar`, `self.log` keeps the value on the GPU until a logger needs it, and
    `Trainer(log_every_n_steps=100)` makes that rare. For a progress bar, log the epoch value
    (`on_step=False, on_epoch=True`).

    ## When it is fine
    At the end of an epoch, or in validation.
    """

    code = "GAP154"
    name = "lightning-read"
    priority = 90
    advice = (
        "log without `prog_bar=True` (or with `on_step=False, on_epoch=True`), and raise "
        "`Trainer(log_every_n_steps=N)`"
    )
    change = "log without `prog_bar=True`"

    def matches(self, site: Site) -> bool:
        frame = deciding_frame(site)
        return site.mechanism == "read" and frame is not None and frame.library in _LIBRARIES

    def known_change(self, site: Site) -> str:
        frame = deciding_frame(site)
        if frame is None or frame.function.endswith("to_item"):
            logs = any(is_below(site, library, "log_metrics") for library in _LIBRARIES)
            return "raise `Trainer(log_every_n_steps=N)`" if logs else ""
        file = frame.file.replace("\\", "/")
        return next((change for part, change in _CHANGES.items() if file.endswith(part)), "")

    def remedy(self, site: Site) -> str:
        frame = deciding_frame(site)
        if frame is None or frame.function.endswith("to_item"):
            logs = any(is_below(site, library, "log_metrics") for library in _LIBRARIES)
            return "raise `Trainer(log_every_n_steps=N)`: only those steps are read" if logs else self.advice
        file = frame.file.replace("\\", "/")
        specific = next((advice for part, advice in _KNOWN if file.endswith(part)), "")
        where = f"{frame.library} reads a value at {short_path(frame)} ({frame.function})"
        return (
            f"{where}: {specific}" if specific else f"{where}; logging less often may avoid it: {self.advice}"
        )
