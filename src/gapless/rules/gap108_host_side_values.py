"""GAP108: an operator that reads its arguments on the CPU before it starts."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._code import Code, is_module
from gapless.rules._places import advise_for_library, bare_operator, parse_waiting_line


class HostSideValues(WaitRule):
    """An operator that looks at values on the CPU before it starts, as `torch.normal(mean, std)` does.

    ## What waits
    Some operators read values of their arguments on the CPU, to check them or to plan the work.
    `torch.normal` with a tensor of standard deviations reads whether all of them are positive;
    `searchsorted` reads the range of its `sorter`, `segment_reduce` its lengths, `torch.linalg.matrix_exp`
    the norms of its matrices. The backward pass of `cumprod` reads whether there is a zero.

    ## Why it costs
    The read is inside the operator: nothing in the line shows it. A variational model that draws with
    `torch.normal` waits right after the network that computed the parameters.

    ## Example
    ```python
    mean, spread = x, torch.exp(z)
    sample = torch.normal(mean, spread)
    ```

    ## Use instead
    ```python
    mean, spread = x, torch.exp(z)
    sample = mean + spread * torch.randn_like(mean)
    ```
    In general: use simpler operators that check nothing, or prepare the values on the CPU
    beforehand. The second form also passes gradients to the mean and to the spread.

    ## When it is fine
    Outside the training loop, or where the check is wanted and a sync does not matter.
    """

    code = "GAP108"
    name = "host-side-values"
    priority = 20
    advice = "use simpler operators that check nothing, or prepare the values on the CPU beforehand"
    change = "use operators that need no values on the CPU"

    def matches(self, site: Site) -> bool:
        if site.mechanism == "values":
            return True
        return site.mechanism == "read" and bare_operator(site) not in ("_local_scalar_dense", "")

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        specific = _POSITIVE if site.of_node and site.node.startswith("Cumprod") else ""
        if bare_operator(site) == "normal":
            specific = (_advise_normal(code) if code is not None else "") or _NORMAL
        return advise_for_library(site, specific or self.advice)


_NORMAL = "`mean + std * torch.randn_like(std)` draws the same values without the check that syncs"
_POSITIVE = (
    "if every factor is above zero, `x.log().cumsum(dim).exp()` has the same value, and its backward does "
    "not search for zeros"
)


def _advise_normal(code: Code) -> str:
    call = code.only_call("normal")
    if call is None or len(call.args) != 2 or call.keywords or not isinstance(call.func, ast.Attribute):
        return ""
    mean, spread = (code.operand(argument) for argument in call.args)
    if (
        not is_module(call.func.value, "torch", "th")
        or not mean
        or not code.text(call.args[1]).isidentifier()
    ):
        return ""
    drawn = f"{spread} * torch.randn_like({spread})"
    shift = "" if isinstance(call.args[0], ast.Constant) and call.args[0].value == 0 else f"{mean} + "
    return f"`{shift}{drawn}` draws the same values without the check that syncs"
