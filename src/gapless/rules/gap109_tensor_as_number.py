"""GAP109."""

from __future__ import annotations

from gapless.model import Rule, Site
from gapless.rules._code import called, keyword
from gapless.rules._places import operator, own_code


class TensorAsNumber(Rule):
    """A device tensor given to a parameter that takes a number: the operator reads it on the host.

    ## What waits
    Parameters such as `alpha=`, `value=`, `fill_value`, `eps`, `p` or the `min` and `max` of `torch.histc`
    are numbers that the host passes to the kernel. Given a 0-dim device tensor, PyTorch reads it with an
    implicit `.item()`.

    ## Why it costs
    Nothing in the line looks like a read. The host waits for the tensor to be computed, only to send its
    value back to the device with the next launch.

    ## Example
    ```python
    rate = loss.detach() * 0.1
    filled = torch.full((8, 4), rate, device=device)
    moved = torch.add(x, z, alpha=rate)
    ```

    ## Use instead
    ```python
    rate = loss.detach() * 0.1
    filled = rate.expand(8, 4).clone()
    moved = x + rate * z
    ```
    Tensors among tensors are broadcast on the device: write the arithmetic out, and use `torch.where` or
    `masked_fill` with a tensor value instead of a number.

    ## When it is fine
    Where the tensor is on the host already (a 0-dim CPU tensor is passed to the kernel without a wait), or
    rarely.
    """

    code = "GAP109"
    name = "tensor-as-number"
    priority = 20
    advice = (
        "compute with the tensor itself, which is broadcast on the device (`x + rate * y` for `alpha=rate`)"
    )

    def matches(self, site: Site) -> bool:
        if site.mechanism != "read" or site.in_backward or operator(site) != "_local_scalar_dense":
            return False
        return site.call.startswith(("torch.", "Tensor.")) or (not site.call and own_code(site) is not None)

    def remedy(self, site: Site) -> str:
        code = own_code(site)
        call = code.only_call("add", "add_", "sub", "sub_") if code is not None else None
        scaled = keyword(call, "alpha") if call is not None else None
        if code is None or call is None or scaled is None or not (number := code.text(scaled)):
            return self.advice
        sign = "+" if called(call).startswith("add") else "-"
        return f"`alpha` is read on the host: write the product out, `a {sign} {number} * b`"
