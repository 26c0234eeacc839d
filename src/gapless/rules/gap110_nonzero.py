"""GAP110."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._by_use import advise_selection, change_selection
from gapless.rules._code import is_module
from gapless.rules._places import advise_for_library, bare_names, parse_waiting_line

_NAMES = {"nonzero", "nonzero_numpy", "argwhere"}


class Nonzero(WaitRule):
    """`nonzero`, `argwhere` or one-argument `where`: the number of hits must be known to allocate the result.

    ## What waits
    `torch.nonzero`, `torch.argwhere` and `torch.where(condition)` return as many rows as there are non-zero
    elements. The CPU cannot allocate the result before the GPU has counted them, so it copies the count
    back and waits for everything queued before it.

    ## Why it costs
    While the CPU waits it launches nothing; once the count has arrived the GPU is empty and idles until
    the next kernels are launched. The length of the call says little: it includes all the work that was
    queued before it.

    ## Example
    ```python
    inds = torch.nonzero(target == background, as_tuple=True)
    target[inds] = ignore
    ```

    ## Use instead
    ```python
    target = torch.where(target == background, ignore, target)
    ```
    Compute with the mask itself: `torch.where(mask, a, b)`, `masked_fill`, a sum weighted by the mask, or
    `mask.sum()` where only the number is needed. Where indices are needed, a bounded form has a fixed size:
    `gapless.ops.nonzero(mask, size=n, fill_value=-1)`, with the number of them, or `torch.nonzero_static`,
    without; `gapless.ops.assign` writes to them and to no padding.

    ## When it is fine
    In set-up, in evaluation that runs rarely, or where the selected part is so small that working on it
    saves more than the sync costs: measure both.
    """

    code = "GAP110"
    name = "nonzero"
    advice = (
        "keep the mask and its fixed size: `torch.where(mask, a, b)`, `masked_fill`, or a sum weighted "
        "by the mask; `gapless.ops.nonzero(mask, size=n, fill_value=-1)` where indices are needed, and "
        "`gapless.ops.assign` to write there"
    )
    change = "keep the mask: `torch.where` instead of `nonzero`"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "size" and not _NAMES.isdisjoint(bare_names(site))

    def remedy(self, site: Site) -> str:
        return advise_selection(site, parse_waiting_line(site), self._own_remedy(site))

    def known_change(self, site: Site) -> str:
        return change_selection(site)

    def _own_remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        call = code.only_call("nonzero", "argwhere", "where") if code is not None else None
        if code is None or call is None:
            return advise_for_library(site, self.advice)
        plain = isinstance(call.func, ast.Attribute) and is_module(call.func.value, "torch", "th")
        mask = code.text(call.args[0]) if plain and call.args else code.subject(call)
        if not mask or (plain and not call.args):
            return self.advice
        return (
            f"keep the mask `{mask}` and its fixed size: `torch.where({mask}, a, b)`, `masked_fill`, or a "
            f"sum weighted by it; `gapless.ops.nonzero({mask}, size=n, fill_value=-1)` where indices are "
            "needed, and `gapless.ops.assign` to write there"
        )
