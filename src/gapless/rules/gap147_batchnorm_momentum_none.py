"""GAP147."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import is_below

_FILE = "torch/nn/modules/batchnorm.py"


class BatchNormMomentumNone(WaitRule):
    """`BatchNorm(momentum=None)` reads its batch counter on the CPU in each forward pass.

    ## What waits
    With `momentum=None`, a batch norm layer keeps a plain average over all batches: it weights the new
    batch by `1 / float(num_batches_tracked)`. The count is a tensor on the GPU, so each training forward
    pass reads it, in each such layer.

    ## Why it costs
    A network has dozens of these layers: the CPU waits dozens of times per step, and never gets ahead of
    the GPU.

    ## Example
    ```python
    norm = nn.BatchNorm1d(4, momentum=None).to(device)
    out = norm(x)
    ```

    ## Use instead
    ```python
    norm = nn.BatchNorm1d(4, momentum=0.1).to(device)
    out = norm(x)
    ```
    For a plain average, count the batches in Python and set `norm.momentum = 1.0 / batches` before the
    forward pass: that number is known on the CPU.

    ## When it is fine
    While statistics are recomputed, for example after averaging weights
    (`torch.optim.swa_utils.update_bn`)."""

    code = "GAP147"
    name = "batchnorm-momentum-none"
    priority = 100
    advice = (
        "give the layer a number as `momentum`; for a plain average, set "
        "`layer.momentum = 1.0 / batches` with a count kept in Python"
    )
    change = "give the BatchNorm layers a number as `momentum`"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "read" and is_below(site, "torch", file=_FILE)
