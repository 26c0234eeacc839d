"""GAP128."""

from __future__ import annotations

from gapless.model import NOTHING, Site, WaitRule
from gapless.rules._places import advise_for_library, bare_operator

_AS_FEW = "the lengths are on the CPU already, and no option of the loss avoids the small copies that remain"


class CtcLoss(WaitRule):
    """`ctc_loss`: the lengths of inputs and targets are needed on the CPU and on the GPU.

    ## What waits
    PyTorch's own CTC loss on CUDA plans its work with the lengths on the CPU. Lengths on the GPU are
    copied back first, which waits; then both lists of lengths and the offsets of the targets are copied to
    the GPU, in forward and again in backward, from pageable memory.

    ## Why it costs
    The first copies are the expensive ones: the CPU waits until the queue is empty before it can launch
    the loss.

    ## Example
    ```python
    log_probs = torch.randn(6, 8, classes, device=device).log_softmax(2)
    labels = torch.ones(8, 2, dtype=torch.long, device=device)
    input_lengths = torch.full((8,), 6, device=device)
    loss = F.ctc_loss(log_probs, labels, input_lengths, lengths.clamp(max=2))
    ```

    ## Use instead
    ```python
    log_probs = torch.randn(6, 8, classes, device=device).log_softmax(2)
    labels = torch.ones(8, 2, dtype=torch.long, device=device)
    loss = F.ctc_loss(log_probs, labels, (6,) * 8, (2,) * 8)  # fewer: the lengths are Python numbers
    ```
    Keep the lengths on the CPU, where the batch was padded: as a tuple, or as a CPU tensor. Three small
    copies remain; no option of the loss avoids them.

    ## When it is fine
    In speech models whose steps are so long that the copies do not show.
    """

    code = "GAP128"
    name = "ctc-loss"
    priority = 100
    advice = "give the lengths as tuples or CPU tensors, so that nothing has to be read back first"
    change = "give `ctc_loss` its lengths as CPU tensors"

    def matches(self, site: Site) -> bool:
        return "ctc_loss" in bare_operator(site)

    def remedy(self, site: Site) -> str:
        return advise_for_library(site, _AS_FEW if site.mechanism == "h2d" else self.advice)

    def known_change(self, site: Site) -> str:
        return f"{NOTHING}: no option avoids these copies" if site.mechanism == "h2d" else ""
