"""GAP119."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import in_library, operator

_BY_OPERATOR = {
    "isin": (
        "`isin` sorts both sides where many values are asked for: mark the wanted classes in a bool "
        "tensor, once, and read it with `marks[x]`"
    ),
    "ProdBackward0": (
        "the gradient of `prod` looks for zeros: for positive values, `x.log().sum().exp()` is the same "
        "product"
    ),
}


class DataDependentSize(WaitRule):
    """A result whose size depends on the data: the CPU cannot allocate it before it has read the size.

    ## What waits
    The operator named in the finding returns as much as the values of its arguments ask for, like
    `torch.isin`, which sorts both sides where many values are looked for and drops those that occur twice,
    or `torch.combinations`, which selected with a mask before torch 2.14. The GPU computes the size, the CPU
    reads it, and only then can it allocate the result and go on.

    ## Why it costs
    The CPU waits for everything launched before, and whatever follows has a shape that changes from step
    to step: the allocator cannot use its blocks again, CUDA graphs cannot be captured, and a compiled model
    recompiles.

    ## Example
    ```python
    values = torch.arange(6, device=device)
    wanted = torch.arange(0, 100, 2, device=device)
    even = torch.isin(values, wanted)
    ```

    ## Use instead
    ```python
    values = torch.arange(6, device=device)
    wanted = torch.arange(0, 100, 2, device=device)
    marks = torch.zeros(100, dtype=torch.bool, device=device).index_fill_(0, wanted, True)
    even = marks[values]
    ```
    In general: a mask of the full shape instead of a selection, a bound instead of an exact size with a
    count beside it, and sizes that are known on the CPU passed as Python numbers.

    ## When it is fine
    In set-up, or where the smaller size saves more than the sync costs.
    """

    code = "GAP119"
    name = "data-dependent-size"
    priority = 10
    advice = (
        "use a form of fixed size: a mask of the full shape instead of a selection, or a bound that the "
        "CPU knows with a count beside it"
    )
    change = "use a form whose result has a fixed size"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "size"

    def remedy(self, site: Site) -> str:
        return in_library(site, _BY_OPERATOR.get(operator(site), self.advice))
