"""GAP150."""

from __future__ import annotations

from gapless.model import Site, WaitRule


class DetectAnomaly(WaitRule):
    """`torch.autograd.detect_anomaly()`: backward checks after each node whether its gradients contain a NaN.

    ## What waits
    In anomaly mode, autograd tests every gradient that a node of the graph returns and reads the answer on
    the CPU, one sync each: hundreds in one backward pass. The mode also keeps a traceback for each forward
    operation.

    ## Why it costs
    Backward becomes a sequence of one kernel and one sync. Training in this mode is several times slower.

    ## Example
    ```python
    with torch.autograd.detect_anomaly():
        F.cross_entropy(model(x), y).backward()
    ```

    ## Use instead
    ```python
    F.cross_entropy(model(x), y).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    bad = ~torch.isfinite(torch.nn.utils.get_total_norm(gradients))
    ```
    `bad` is a tensor: read it once every N steps, and turn anomaly mode on once it has been true.
    `detect_anomaly(check_nan=False)` keeps the tracebacks without the reads.

    ## When it is fine
    For the few steps in which you search for the origin of a NaN."""

    code = "GAP150"
    name = "detect-anomaly"
    priority = 110
    advice = (
        "keep anomaly mode off in training and check the gradient norm once every N steps; "
        "`detect_anomaly(check_nan=False)` keeps its tracebacks without the reads"
    )
    change = "turn `detect_anomaly` off"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "read" and site.detail == "anomaly"
