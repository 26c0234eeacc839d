"""GAP105."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._by_use import advise_by_use, change_by_use
from gapless.rules._code import Code
from gapless.rules._places import bare_names, bare_operator, parse_waiting_line

_INDEXING = {"__index__", "__getitem__", "__setitem__"}
_SHAPES = {
    "arange", "chunk", "empty", "expand", "eye", "flatten", "linspace", "narrow", "new_empty", "new_ones",
    "new_zeros", "ones", "permute", "rand", "randint", "randn", "randperm", "repeat", "reshape", "roll",
    "select", "split", "tile", "topk", "tril", "triu", "unflatten", "unfold", "view", "zeros",
}  # fmt: skip

_NUMBER_FORMATTERS = ("bin", "chr", "hex", "oct")
"""Python functions that write an integer as text."""


class TensorAsIndex(WaitRule):
    """A GPU tensor as a slice bound, a position, a `range` or a shape: Python and shapes need an `int`.

    ## What waits
    `x[:n]`, `x[i]` with a 0-dim integer `i`, `range(n)`, `torch.zeros(n)`, `x.view(n, -1)` and a Python
    list indexed with `n`: wherever a whole number is needed and a GPU tensor is given, its value is
    copied to the CPU. Writing a number at a position, `x[i] = 1.0`, needs no copy since torch 2.15.

    ## Why it costs
    Positions and lengths are often the result of the step's own computation (an `argmax`, a count), so the
    CPU waits for that computation before it can launch anything that uses it.

    ## Example
    ```python
    best = scores.argmax()
    row = x[best]
    length = lengths.max()
    trimmed = x[:length]
    ```

    ## Use instead
    ```python
    best = scores.argmax()
    row = x.index_select(0, best.reshape(1)).squeeze(0)
    length = lengths.max()
    inside = torch.arange(x.shape[0], device=x.device) < length
    trimmed = torch.where(inside.unsqueeze(1), x, 0.0)
    ```
    An index tensor of one dimension stays on the GPU. Lengths that come from the data are better
    computed on the CPU while the batch is prepared, and kept as Python numbers next to it.

    ## When it is fine
    Where a shorter shape saves much more work than the sync costs (long padding), or outside the loop.
    """

    code = "GAP105"
    name = "tensor-as-index"
    advice = (
        "select with an index tensor of one dimension (`x.index_select(0, i.reshape(1))`), mask instead "
        "of slicing (`torch.arange(n, device=x.device) < length`), or keep lengths as Python numbers "
        "from the start"
    )
    change = "select with a mask or `index_select`, not a GPU number"

    def matches(self, site: Site) -> bool:
        if site.mechanism != "read":
            return False
        if not _INDEXING.isdisjoint(bare_names(site)):
            return True
        if site.call or site.of_node:
            return site.call.rpartition(".")[2] in _SHAPES
        if bare_operator(site) != "_local_scalar_dense":  # such as the sizes that `bincount` asks for
            return False
        if any(use.kind == "size" and use.text == site.expression for use in site.uses):
            return True
        code = parse_waiting_line(site)  # a shape is read inside PyTorch, by no call of its own
        return code is not None and bool(code.calls(*_SHAPES))

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        if code is not None and (formatted := _advise_formatting(code, site)):
            return formatted
        if by_use := advise_by_use(site, code):
            return by_use
        if code is None:
            return self.advice
        return _advise_subscript(code, site.call) or _advise_range(code) or self.advice

    def known_change(self, site: Site) -> str:
        code = parse_waiting_line(site)
        return (
            "copy the values to the CPU together"
            if code is not None and _advise_formatting(code, site)
            else change_by_use(site)
        )


def _advise_subscript(code: Code, reading_call: str) -> str:
    """Return advice for ``x[:n]`` and ``x[i]``; `reading_call` distinguishes tensors from lists."""
    subscript = code.only_subscript()
    if subscript is None or code.calls("range") or not isinstance(subscript.ctx, ast.Load):
        return ""
    owner, index = code.text(subscript.value), subscript.slice
    if not owner or not isinstance(subscript.value, (ast.Name, ast.Attribute)):
        return ""
    if (
        isinstance(index, ast.Slice)
        and index.upper is not None
        and index.lower is None
        and index.step is None
    ):
        bound = code.text(index.upper)
        if bound and isinstance(index.upper, (ast.Name, ast.Attribute)):
            if reading_call.endswith("__index__"):
                return f"slice `{owner}` with a Python number: keep `{bound}` as one from the start"
            return (
                "keep the full shape and mask it: "
                f"`torch.arange({owner}.shape[0], device={owner}.device) < {bound}`; "
                f"or keep `{bound}` as a Python number from the start"
            )
    if isinstance(index, (ast.Name, ast.Attribute)) and (position := code.text(index)):
        if reading_call.endswith("__index__"):
            return (
                f"`{owner}` is indexed on the CPU: make it a GPU tensor and select with `index_select`, or "
                f"keep `{position}` as a Python number"
            )
        return (
            f"`{owner}.index_select(0, {position}.reshape(1)).squeeze(0)` selects on the GPU, "
            f"where `{owner}` is a GPU tensor"
        )
    return ""


def _advise_formatting(code: Code, site: Site) -> str:
    """Return advice for ``chr(token)``, which has no form on the GPU."""
    call = code.only_call(*_NUMBER_FORMATTERS)
    if call is None or not isinstance(call.func, ast.Name) or not site.call.endswith("__index__"):
        return ""
    return (
        f"`{call.func.id}` needs a number on the CPU: copy all values at once (`values = x.tolist()`), and "
        "call it for each of them"
    )


def _advise_range(code: Code) -> str:
    call = code.only_call("range")
    if call is None or len(call.args) != 1 or not (bound := code.text(call.args[0])):
        return ""
    return f"loop up to a number known on the CPU (a shape, a maximum) and mask everything beyond `{bound}`"
