"""GAP107."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._places import bare_names, parse_waiting_line


class InTensor(WaitRule):
    """`value in tensor`: Python's `in` needs a bool, and the elements are on the GPU.

    ## What waits
    `value in tensor` compares every element with the value on the GPU, reduces the answers to one and
    copies it to the CPU, which waits for it.

    ## Why it costs
    It looks like a cheap lookup but waits for everything launched before. In a loop over classes or ids
    it waits once for each.

    ## Example
    ```python
    if 3 in y:
        loss = loss * 2.0
    ```

    ## Use instead
    ```python
    loss = torch.where((y == 3).any(), loss * 2.0, loss)
    ```
    A few values at once: `torch.isin(y, wanted)` checks each element on the GPU. (For many values it
    sorts and removes duplicates, which syncs: mark the wanted classes in a bool tensor, and index it
    with `marks[y]`.)

    ## When it is fine
    In set-up, or on a CPU tensor: check there, before the batch is copied to the GPU."""

    code = "GAP107"
    name = "in-tensor"
    advice = (
        "`(tensor == value).any()` keeps the answer on the GPU; `torch.isin` checks several values at once"
    )
    change = "check on the GPU: `(tensor == value).any()`"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "read" and "__contains__" in bare_names(site)

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        if code is None:
            return self.advice
        comparisons = [node for node in code.nodes() if isinstance(node, ast.Compare)]
        if (
            len(comparisons) != 1
            or len(comparisons[0].ops) != 1
            or not isinstance(comparisons[0].ops[0], (ast.In, ast.NotIn))
        ):
            return self.advice
        value, tensor = code.operand(comparisons[0].left), code.operand(comparisons[0].comparators[0])
        if not value or not tensor:
            return self.advice
        some = f"({tensor} == {value}).any()"
        if isinstance(comparisons[0].ops[0], ast.NotIn):
            some = f"({tensor} != {value}).all()"
        return f"`{some}` keeps the answer on the GPU; `torch.where` chooses with it"
