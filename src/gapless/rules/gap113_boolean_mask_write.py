"""GAP113."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._code import Code
from gapless.rules._places import advise_for_library, bare_operator, parse_waiting_line

_OPERATORS = {
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index_put",
    "_unsafe_masked_index_put_accumulate",
    "masked_scatter_backward",
    "__setitem__",
}

_ROWS = " (a mask of rows needs one more dimension: `mask.unsqueeze(-1)`)"


class BooleanMaskWrite(WaitRule):
    """`x[mask] = tensor`: the mask is turned into indices, and their number must be known on the CPU.

    ## What waits
    Writing a tensor through a bool mask needs the positions that the mask selects: `nonzero` counts them,
    and the CPU waits for the number. A Python number, or a 0-dim tensor on the CPU, is another case: with
    one mask, `x[mask] = 0` becomes `masked_fill`, which does not wait.

    ## Why it costs
    The write itself is one small kernel. The sync before it empties the queue, and in backward the gradient
    of the written values is selected with the same mask, which waits again.

    ## Example
    ```python
    x[mask] = z[mask]
    x[mask] += 1.0
    ```

    ## Use instead
    ```python
    x = torch.where(mask, z, x)
    x = torch.where(mask, x + 1.0, x)
    ```
    Where the values are a compact list, one for each selected element, `x.masked_scatter(mask, values)`
    writes them in the same order without a sync; the mask must broadcast to `x` from the right, so a mask
    of rows needs `mask.unsqueeze(-1)`. (Only where the values need gradients, its backward pass selects
    them, and waits; that of `gapless.ops.masked_scatter(x, mask, values)` does not.)

    ## When it is fine
    Outside the training loop, or where computing the full shape costs more than the sync.
    """

    code = "GAP113"
    name = "boolean-mask-write"
    advice = (
        "`x = torch.where(mask, values, x)` for values with the shape of `x`; `x.masked_scatter_(mask, "
        "values)` for a compact list of values"
    )
    change = "write through the mask with `torch.where`"

    def matches(self, site: Site) -> bool:
        if site.mechanism != "size":
            return False
        return bare_operator(site) in _OPERATORS or (site.of_node and site.node.startswith("IndexPut"))

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        return (_advise_assignment(code) if code is not None else "") or advise_for_library(site, self.advice)


def _advise_assignment(code: Code) -> str:
    statement = code.statement
    target: ast.expr
    if isinstance(statement, ast.AugAssign):
        target, value = statement.target, statement.value
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    else:
        return ""
    if not isinstance(target, ast.Subscript) or isinstance(target.slice, (ast.Tuple, ast.Slice)):
        return ""
    if not isinstance(target.value, (ast.Name, ast.Attribute, ast.Subscript)):
        return ""  # nothing that could be assigned to
    owner, mask = code.text(target.value), code.text(target.slice)
    if not owner or not mask:
        return ""
    same = [
        node
        for node in ast.walk(value)
        if isinstance(node, ast.Subscript) and ast.dump(node.slice) == ast.dump(target.slice)
    ]
    if isinstance(statement, ast.AugAssign):
        return _advise_in_place(code, statement, owner, mask) if not same else ""
    if same == [value] and (source := code.text(same[0].value)):
        chosen = f"{owner} = torch.where({mask}, {source}, {owner})"
        return f"`{chosen}` writes the same values at a fixed size{_ROWS}"
    if same:
        return ""
    return (
        f"`{owner}.masked_scatter_({mask}, values)` writes a compact list of values without the sync, for "
        f"a mask with the shape of `{owner}`; for values with that shape, `{owner} = torch.where({mask}, "
        f"values, {owner})`"
    )


def _advise_in_place(code: Code, statement: ast.AugAssign, owner: str, mask: str) -> str:
    signs: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
    sign, value = signs.get(type(statement.op), ""), statement.value
    if not sign or not isinstance(value, ast.Constant):
        return ""
    changed = f"{owner} {sign} {code.text(value)}"
    return f"`{owner} = torch.where({mask}, {changed}, {owner})` does the same at a fixed size{_ROWS}"
