"""GAP143."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import is_below

_FILE = "torch/nn/utils/clip_grad.py"


class ClipGradCheck(WaitRule):
    """`clip_grad_norm_(error_if_nonfinite=True)`: the norm is read on the CPU to raise an error.

    ## What waits
    With `error_if_nonfinite=True`, `torch.nn.utils.clip_grad_norm_` must know whether the norm of all
    gradients is NaN or infinite before it goes on. The norm is known when backward has finished.

    ## Why it costs
    The CPU waits for the whole backward pass and only then launches clipping and the optimizer, while the
    GPU idles.

    ## Example
    ```python
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    ```

    ## Use instead
    ```python
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    bad = ~torch.isfinite(norm)  # a tensor: sum it up, and read it once every N steps
    optimizer.step()
    ```
    Clipping itself never waits. To skip the step of a bad gradient on the GPU, replace non-finite
    values (`torch.nan_to_num`) and multiply the gradients by zero where the norm is not finite.

    ## When it is fine
    While searching for the step that diverges.
    """

    code = "GAP143"
    name = "clip-grad-check"
    priority = 100
    advice = (
        "keep `error_if_nonfinite` off, and skip the step on the GPU: `gapless.ops.step_if(optimizer, "
        "norm.isfinite())`; or check the norm once every N steps (`bad |= ~torch.isfinite(norm)`)"
    )
    change = "keep `error_if_nonfinite` off"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "read" and is_below(site, "torch", file=_FILE)

    def remedy(self, site: Site) -> str:
        if is_below(site, "lightning", "clip_gradients"):  # Fabric turns the check on by default
            return self.advice.replace("keep `error_if_nonfinite` off", "give it `error_if_nonfinite=False`")
        return self.advice
