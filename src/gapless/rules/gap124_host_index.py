"""GAP124."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._code import Code, is_constant
from gapless.rules._places import advise_for_library, bare_operator, parse_waiting_line


class HostIndex(WaitRule):
    """A GPU tensor indexed with a list, a NumPy array or a CPU tensor: the index is copied over first.

    ## What waits
    `x[[0, 2]]`, `x[array]` and `x[index]` with `index` on the CPU work on a GPU tensor because PyTorch
    copies the index to the GPU first. The copy comes from pageable memory and blocks.

    ## Why it costs
    Nothing in the line shows a copy. Random permutations and lists of kept rows are typical, and are
    created again in each step.

    ## Example
    ```python
    order = torch.randperm(x.shape[0])
    shuffled = x[order]
    pair = x[[0, 2]]
    ```

    ## Use instead
    ```python
    order = torch.randperm(x.shape[0], device=device)
    shuffled = x[order]
    pair = torch.stack([x[0], x[2]])
    ```
    Create the index on the GPU, once before the loop if it does not change. A slice (`x[0:4:2]`) or a
    single Python number is only a view and copies nothing.

    ## When it is fine
    In set-up.
    """

    code = "GAP124"
    name = "host-index"
    priority = 60
    advice = "make the index a GPU tensor, once before the loop if it does not change; slices copy nothing"
    change = "make the index on the GPU"
    reach = "class"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "h2d" and (
            site.detail == "index" or bare_operator(site) in ("__getitem__", "__setitem__")
        )

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        return (
            _advise_slice(code) or _advise_device_index(code) if code is not None else ""
        ) or advise_for_library(site, self.advice)


def _advise_slice(code: Code) -> str:
    """Return advice for ``x[:, [-1]]``: a list of one number is a slice."""
    lists = [node for node in code.nodes() if isinstance(node, ast.List) and len(node.elts) == 1]
    subscripts = [node for node in code.nodes() if isinstance(node, ast.Subscript)]
    inside = [node for node in subscripts if lists and _index_parts(node).count(lists[0])]
    if len(lists) != 1 or len(inside) != 1:
        return ""
    try:
        position = ast.literal_eval(lists[0].elts[0])
    except ValueError:
        return ""
    other_parts = [part for part in _index_parts(inside[0]) if part is not lists[0]]
    if type(position) is not int or not all(
        isinstance(part, (ast.Slice, ast.Constant)) for part in other_parts
    ):
        return ""  # next to another index a list of one number is not a slice
    subscript, whole = inside[0], code.text(inside[0])
    start, end = (
        lists[0].col_offset - subscript.col_offset,
        (lists[0].end_col_offset or 0) - subscript.col_offset,
    )
    if not whole or not whole.isascii():
        return ""
    slice_ = f"{position}:" if position == -1 else f"{position}:{position + 1}"
    return f"a list of one number is a slice, which copies nothing: `{whole[:start]}{slice_}{whole[end:]}`"


def _index_parts(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _advise_device_index(code: Code) -> str:
    subscript = code.only_subscript()
    owner, index = (
        (code.primary(subscript.value), code.text(subscript.slice)) if subscript is not None else ("", "")
    )
    if subscript is None or not owner or not index:
        return ""
    if isinstance(subscript.slice, ast.List) and is_constant(subscript.slice):
        return f"make the index once, before the loop: `torch.tensor({index}, device={owner}.device)`"
    if isinstance(subscript.slice, (ast.Name, ast.Attribute)):
        return f"make `{index}` on the GPU of `{owner}`, where it is created: `device={owner}.device`"
    return ""
