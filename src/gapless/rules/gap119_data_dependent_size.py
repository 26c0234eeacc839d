"""GAP119."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._by_use import advise_selection
from gapless.rules._places import advise_for_library, bare_operator, parse_waiting_line

_BY_OPERATOR = {
    "isin": (
        "`isin` sorts both sides if there are many values: mark the wanted classes once in a bool tensor, "
        "and index it with `marks[x]` "
        "(`marks.index_fill_(0, wanted, True)` marks them without a sync)"
    ),
    "ProdBackward0": (
        "the gradient of `prod` looks for zeros: for positive values, `x.log().sum().exp()` is the same "
        "product"
    ),
}


class DataDependentSize(WaitRule):
    """A result whose size depends on the data: the CPU cannot allocate it before it has read the size.

    ## What waits
    The operator named in the finding returns a result whose size depends on the values of its arguments,
    like `torch.isin`, which sorts both sides if there are many values and removes duplicates, or
    `torch.combinations`, which selected with a mask before torch 2.14. The GPU computes the size, the CPU
    reads it, and only then can it allocate the result and continue.

    ## Why it costs
    The CPU waits for everything launched before, and whatever follows has a shape that changes from step to
    step: the allocator cannot reuse its blocks, CUDA graphs cannot be captured, and a compiled model
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
    In general: a mask of the full shape instead of a selection, a bound plus a count instead of an
    exact size, and sizes that are known on the CPU passed as Python numbers.

    ## When it is fine
    In set-up, or where the smaller size saves more than the sync costs.
    """

    code = "GAP119"
    name = "data-dependent-size"
    priority = 10
    advice = (
        "use a form of fixed size: a mask of the full shape instead of a selection, or a bound known on "
        "the CPU, together with a count"
    )
    change = "use a form whose result has a fixed size"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "size"

    def remedy(self, site: Site) -> str:
        own = advise_for_library(site, _BY_OPERATOR.get(bare_operator(site), self.advice))
        return advise_selection(site, parse_waiting_line(site), own)
