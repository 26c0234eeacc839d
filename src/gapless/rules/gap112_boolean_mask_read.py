"""GAP112."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._code import Code, called, is_module
from gapless.rules._places import in_library, operator, own_code, user_code

_NODES = ("IndexBackward", "MaskedSelectBackward")
_OPERATORS = {"index", "_unsafe_index", "masked_select", "_unsafe_masked_index", "__getitem__"}
_SUMS = ("sum", "mean")
_LOSSES = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)


class BooleanMaskRead(WaitRule):
    """`x[mask]` or `masked_select`: how many elements the mask selects must be known to allocate the result.

    ## What waits
    Indexing with a bool (or uint8) mask turns the mask into indices with `nonzero`, and the CPU waits for
    their number. `torch.masked_select` does the same. Where gradients flow through `x[mask]`, the mask is
    turned into indices once more in backward, and the CPU waits again.

    ## Why it costs
    The usual place is a masked loss at the end of the forward pass: the CPU waits for all of it, and the
    GPU then idles until backward has been launched.

    ## Example
    ```python
    errors = F.cross_entropy(logits, target, reduction="none")
    valid = target != ignore
    loss = errors[valid].mean()
    ```

    ## Use instead
    ```python
    errors = F.cross_entropy(logits, target, reduction="none")
    valid = target != ignore
    loss = torch.where(valid, errors, 0.0).sum() / valid.sum()
    ```
    Zeros outside the mask do not change a sum, and `mask.sum()` is the number to divide by. Use
    `torch.where` and not a product with the mask where the excluded values may be infinite or NaN. Many
    losses do this themselves: `F.cross_entropy(logits, target, ignore_index=ignore)`. `gapless.ops` has
    losses and reductions that take the mask, and `compact`, a bounded selection that also returns the count.

    ## When it is fine
    Where the selected part is small and a lot of work follows on it, or outside the training loop.
    """

    code = "GAP112"
    name = "boolean-mask-read"
    advice = (
        "keep the full shape, and pass the mask to what follows: the losses and means of `gapless.ops`, or "
        "`torch.where(mask, a, b)`; with a bound, `gapless.ops.compact(x, mask, size=n)` selects"
    )
    change = "replace the boolean mask with `torch.where`"

    def matches(self, site: Site) -> bool:
        if site.mechanism != "size":
            return False
        if site.in_backward and site.node.startswith(_NODES):
            return True
        if site.in_backward and site.node.startswith("IndexPut"):
            return False  # the gradient of a masked write
        code = user_code(site)
        if code is not None and code.calls("combinations"):
            return False  # it selects with a mask inside
        return operator(site) in _OPERATORS

    def remedy(self, site: Site) -> str:
        code = own_code(site)
        return (
            _ignored(code) or _lost(code) or _reduced(code) or _selected(code) if code is not None else ""
        ) or in_library(site, self.advice)


def _selection(code: Code) -> tuple[ast.expr, str, str] | None:
    """The expression that selects, with the texts of what and by which mask."""
    call = code.only_call("masked_select")
    if call is not None:
        plain = isinstance(call.func, ast.Attribute) and is_module(call.func.value, "torch", "th")
        texts = [code.text(value) for value in call.args] if plain else [code.subject(call)]
        if not plain and call.args:
            texts.append(code.text(call.args[0]))
        return (call, texts[0], texts[1]) if len(texts) == 2 and all(texts) else None
    found = code.only_selection()
    if found is None:
        return None
    owner, mask = code.text(found.value), code.text(found.slice)
    return (found, owner, mask) if owner and mask else None


def _bare(text: str) -> str:
    """`text`, in brackets unless a method can be called on it as it stands."""
    tree = ast.parse(text, mode="eval").body
    return text if isinstance(tree, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else f"({text})"


def _reduced(code: Code) -> str:
    """Advice for ``x[mask].sum()`` and ``x[mask].mean()``."""
    selection = _selection(code)
    if selection is None:
        return ""
    node, owner, mask = selection
    for call in code.calls(*_SUMS):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.value is node
            and not call.args
            and not call.keywords
        ):
            total = f"torch.where({mask}, {owner}, 0.0).sum()"
            if call.func.attr == "sum":
                return f"`{total}` is the same sum, at a fixed size (both of one shape)"
            return f"`{total} / {_bare(mask)}.sum()` is the same mean, at a fixed size (both of one shape)"
    return ""


def _ignored(code: Code) -> str:
    """Advice for a classification loss of two selections with one mask."""
    call = code.only_call("cross_entropy", "nll_loss")
    if call is None or len(call.args) != 2 or call.keywords:
        return ""
    logits, target = call.args
    if not isinstance(logits, ast.Subscript) or not isinstance(target, ast.Subscript):
        return ""
    mask = code.text(target.slice)
    if (
        not isinstance(target.slice, (ast.Name, ast.Attribute, ast.Compare))
        or code.text(logits.slice) != mask
    ):
        return ""
    function, values, labels = (code.text(part) for part in (call.func, logits.value, target.value))
    if not function or not values or not labels:
        return ""
    same = f"{function}({values}, torch.where({mask}, {labels}, -100))"
    return f"`{same}` is the same mean for class indices: -100 is ignored"


def _lost(code: Code) -> str:
    """Advice for ``F.mse_loss(x[mask], y[mask])`` and its like."""
    call = code.only_call(*_LOSSES)
    if call is None or len(call.args) != 2 or any(k.arg == "weight" for k in call.keywords):
        return ""
    parts = [part for part in call.args if isinstance(part, ast.Subscript)]
    if len(parts) != 2 or ast.dump(parts[0].slice) != ast.dump(parts[1].slice):
        return ""
    if not isinstance(parts[0].slice, (ast.Name, ast.Attribute, ast.Compare, ast.UnaryOp)):
        return ""
    texts = [code.text(part) for part in (parts[0].value, parts[1].value, parts[0].slice)]
    options = [f"{k.arg}={code.text(k.value)}" for k in call.keywords if k.arg]
    if not all(texts) or any(option.endswith("=") for option in options):
        return ""
    whole = f"gapless.ops.{called(call)}({', '.join([*texts, *options])})"
    return f"`{whole}` is the same loss, at a fixed size (a mask of rows needs `.unsqueeze(-1)`)"


def _selected(code: Code) -> str:
    selection = _selection(code)
    if selection is None:
        return ""
    _, owner, mask = selection
    return (
        f"keep `{owner}` at its full size, and pass the mask to what follows: the losses and means of "
        f"`gapless.ops`, or `torch.where({mask}, {owner}, other)`; with a bound, "
        f"`gapless.ops.compact({owner}, {mask}, size=n)` selects"
    )
