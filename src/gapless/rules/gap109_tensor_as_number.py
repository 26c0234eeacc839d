"""GAP109."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._code import Code, called_name, keyword
from gapless.rules._places import bare_operator, parse_waiting_line

_TAKE_NUMBERS = {
    "fill", "fill_", "index_fill", "index_fill_", "linspace", "logspace", "masked_fill", "masked_fill_",
}  # fmt: skip

_MASKED = {"masked_fill", "masked_fill_"}
_IN_A_MASK = "`masked_fill` reads a value that is a GPU tensor; `torch.where(mask, value, x)` does not"


class TensorAsNumber(WaitRule):
    """A GPU tensor given to a parameter that takes a number: the operator reads it on the CPU.

    ## What waits
    Parameters such as `alpha=`, the `fill_value` of `torch.full`, or the `value` of `masked_fill` and
    `index_fill` are numbers that the CPU passes to the kernel. Given a 0-dim GPU tensor, PyTorch reads
    it with an implicit `.item()`.

    ## Why it costs
    Nothing in the line looks like a read. The CPU waits for the tensor to be computed, only to send its
    value back to the GPU with the next launch.

    ## Example
    ```python
    rate = loss.detach() * 0.1
    filled = torch.full((8, 4), rate, device=device)
    moved = torch.add(x, z, alpha=rate)
    capped = x.masked_fill(mask, rate)
    ```

    ## Use instead
    ```python
    rate = loss.detach() * 0.1
    filled = rate.expand(8, 4).clone()
    moved = x + rate * z
    capped = torch.where(mask, rate, x)
    ```
    Tensors combined with tensors are broadcast on the GPU: write out the arithmetic, and choose
    with `torch.where`.

    ## When it is fine
    Where the tensor is on the CPU already (a 0-dim CPU tensor is passed to the kernel without a sync), or
    rarely.
    """

    code = "GAP109"
    name = "tensor-as-number"
    priority = 25
    advice = "compute with the tensor itself, which is broadcast on the GPU (`x + rate * y` for `alpha=rate`)"
    change = "compute with the tensor itself, not its number"
    reach = "function"

    def matches(self, site: Site) -> bool:
        if site.mechanism != "read":
            return False
        if bare_operator(site) in _TAKE_NUMBERS:
            return True
        if site.of_node or bare_operator(site) != "_local_scalar_dense":
            return False
        return site.call.startswith(("torch.", "Tensor.")) or (
            not site.call and parse_waiting_line(site) is not None
        )

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        if code is None:
            return _IN_A_MASK if bare_operator(site) in _MASKED else self.advice
        return _advise_fill(code) or _advise_alpha(code) or self.advice


def _advise_alpha(code: Code) -> str:
    call = code.only_call("add", "add_", "sub", "sub_")
    scaled = keyword(call, "alpha") if call is not None else None
    number = code.operand(scaled) if scaled is not None else ""
    if call is None or not number:
        return ""
    sign = "+" if called_name(call).startswith("add") else "-"
    return f"`alpha` is read on the CPU: write out the product, `a {sign} {number} * b`"


def _advise_fill(code: Code) -> str:
    call = code.only_call("masked_fill", "masked_fill_")
    if call is None or len(call.args) != 2 or call.keywords or not (owner := code.subject(call)):
        return ""
    mask, value = (code.text(argument) for argument in call.args)
    if not mask or not value or owner in ("torch", "F"):
        return ""
    chosen = f"torch.where({mask}, {value}, {owner})"
    return f"`{chosen}` takes the value from the GPU"
