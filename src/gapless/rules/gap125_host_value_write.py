"""GAP125: a Python number written through an index tensor."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._code import Code
from gapless.rules._places import advise_for_library, bare_operator, parse_waiting_line


class HostValueWrite(WaitRule):
    """A number written through an index tensor: it is first copied to the GPU, and the copy blocks.

    ## What waits
    In `x[index] = value`, with `index` a tensor of positions and `value` a 0-dim tensor on the CPU, the
    operator that writes (`index_put_`) copies the value to the GPU. Writing a single element,
    `row[0] = value`, is such a copy too. Before torch 2.15 a Python number, `x[index] = 1.0`, becomes such
    a tensor first; since then it is passed to the kernel. With one bool mask instead of an index, the write
    becomes `masked_fill`, which takes a number and does not wait; a number written to a slice or a row is
    a `fill_`, which does not wait either.

    ## Why it costs
    Four bytes cost a whole sync: the copy blocks, and it waits for everything queued before it.

    ## Example
    ```python
    rows = torch.arange(4, device=device)
    x[rows] = 1.0    # before torch 2.15
    x[0, 0] = 1.0    # before torch 2.15
    scale = torch.tensor(0.5)
    x[rows] = scale
    ```

    ## Use instead
    ```python
    rows = torch.arange(4, device=device)
    x.index_fill_(0, rows, 1.0)
    x[0, 0].fill_(1.0)
    scale = torch.tensor(0.5)
    x.index_fill_(0, rows, scale)
    ```
    `index_fill_` and `scatter_` take a number as an argument of the kernel. For indices in several
    dimensions, write a value that is on the GPU: `x[rows, columns] = torch.ones((), device=device)`.

    ## When it is fine
    In set-up.
    """

    code = "GAP125"
    name = "host-value-write"
    priority = 60
    advice = (
        "`x.index_fill_(dim, index, value)` or `scatter_` pass the number to the kernel; or write a value "
        "that is already on the GPU: `torch.full((), value, device=x.device)`"
    )
    change = "write the number with `index_fill_` or `fill_`"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "h2d" and site.detail == "value" and bare_operator(site) != "where"

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        written = _parse_write(code)
        if code is None or written is None:
            return advise_for_library(site, self.advice)
        target, value = written
        owner, index, number = code.primary(target.value), code.text(target.slice), code.text(value)
        if not owner or not index or not number:
            return self.advice
        if bare_operator(site) == "copy_":
            return f"`{owner}[{index}].fill_({number})` passes the number to the kernel"
        if isinstance(target.slice, (ast.Name, ast.Attribute)):
            return (
                f"`{owner}.index_fill_(0, {index}, {number})` passes the number to the kernel "
                f"(`{owner}.masked_fill_({index}, {number})` where `{index}` is a mask)"
            )
        value_text = f"torch.full((), {number}, dtype={owner}.dtype, device={owner}.device)"
        return f"write a value that is on the GPU: `{value_text}`"


def _parse_write(code: Code | None) -> tuple[ast.Subscript, ast.expr] | None:
    """Return target and value of a line that writes a literal number through an index, else None."""
    statement = code.statement if code is not None else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    number = value.operand if isinstance(value, ast.UnaryOp) else value
    if not isinstance(target, ast.Subscript) or not isinstance(number, ast.Constant):
        return None
    return target, value
