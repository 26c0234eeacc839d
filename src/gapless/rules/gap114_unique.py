"""GAP114."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._by_use import advise_selection, change_selection
from gapless.rules._code import is_module
from gapless.rules._places import advise_for_library, bare_operator, parse_waiting_line


class Unique(WaitRule):
    """`unique` or `unique_consecutive`: the number of distinct values must be known to allocate the result.

    ## What waits
    `torch.unique` and `torch.unique_consecutive` return as many elements as there are distinct values. The
    CPU waits until the GPU has sorted and counted them, often more than once in one call.

    ## Why it costs
    The usual question is a smaller one than "which values are there": how many, whether a value occurs, or
    one row per class. Those answers have a fixed size and need no sync.

    ## Example
    ```python
    number = torch.unique(y).numel()
    seen = torch.unique(y)
    ```

    ## Use instead
    ```python
    ordered = y.flatten().sort().values
    number = 1 + (ordered[1:] != ordered[:-1]).sum()
    seen = torch.zeros(classes, dtype=torch.bool, device=device).index_fill_(0, y.flatten(), True)
    ```
    `number` is the count, on the GPU (of a tensor that is not empty). `seen` shows for each of a known
    number of classes whether it occurs: one element per class instead of a list of unknown length.

    ## When it is fine
    In set-up, in checks that run rarely, or on the CPU before the batch is copied.
    """

    code = "GAP114"
    name = "unique"
    advice = (
        "for the number: `gapless.ops.count_unique(x)`; for the values, with a bound: "
        "`gapless.ops.unique(x, size=n, fill_value=0)`, and `gapless.ops.assign` to write where they point; "
        "for known classes: a bool of one element per class, set with `index_fill_`"
    )
    change = "give `gapless.ops.unique` a bound: `size=n`"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "size" and "unique" in bare_operator(site)

    def remedy(self, site: Site) -> str:
        return advise_selection(site, parse_waiting_line(site), self._own_remedy(site))

    def known_change(self, site: Site) -> str:
        return change_selection(site)

    def _own_remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        call = code.only_call("unique") if code is not None else None
        if code is None or call is None or call.keywords:
            return advise_for_library(site, self.advice)
        plain = not isinstance(call.func, ast.Attribute) or is_module(call.func.value, "torch", "th")
        if len(call.args) != plain:
            return advise_for_library(site, self.advice)
        values = code.text(call.args[0]) if plain else code.subject(call)
        if not values:
            return advise_for_library(site, self.advice)
        if isinstance(code.statement, (ast.For, ast.AsyncFor)):
            return (
                "the loop needs the values in each step: with classes that the CPU knows let it run over "
                f"all of them, `for label in range(classes)`, where `{values} == label` selects nothing of "
                "one that does not occur"
            )
        return (
            f"to count them: `gapless.ops.count_unique({values})`; for the values, with a bound on their "
            f"number: `gapless.ops.unique({values}, size=n, fill_value=0)`, and `gapless.ops.assign` to "
            "write where they point"
        )
