"""GAP112."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._by_use import advise_selection, change_selection
from gapless.rules._code import Code, called_name, is_module
from gapless.rules._places import advise_for_library, bare_operator, parse_user_line, parse_waiting_line

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
        if site.of_node and site.node.startswith(_NODES):
            return True
        if site.of_node and site.node.startswith("IndexPut"):
            return False  # the gradient of a masked write
        code = parse_user_line(site)
        if code is not None and code.calls("combinations"):
            return False  # it selects with a mask inside
        return bare_operator(site) in _OPERATORS

    def remedy(self, site: Site) -> str:
        return advise_selection(site, parse_waiting_line(site), self._own_remedy(site))

    def known_change(self, site: Site) -> str:
        return change_selection(site)

    def _own_remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        return (
            _advise_ignore_index(code)
            or _advise_loss(code)
            or _advise_reduction(code)
            or _advise_selection(code)
            if code is not None
            else ""
        ) or advise_for_library(site, self.advice)


def _find_selection(code: Code) -> tuple[ast.expr, str, str] | None:
    """Return the selecting expression, and the texts of the tensor and the mask."""
    call = code.only_call("masked_select")
    if call is not None:
        plain = isinstance(call.func, ast.Attribute) and is_module(call.func.value, "torch", "th")
        texts = [code.text(value) for value in call.args] if plain else [code.subject(call)]
        if not plain and call.args:
            texts.append(code.text(call.args[0]))
        return (call, texts[0], texts[1]) if len(texts) == 2 and all(texts) else None
    subscript = code.only_selection()
    if subscript is None:
        return None
    owner, mask = code.text(subscript.value), code.text(subscript.slice)
    return (subscript, owner, mask) if owner and mask else None


def _in_brackets(text: str) -> str:
    """Return `text`, in brackets if a method call on it needs them."""
    tree = ast.parse(text, mode="eval").body
    return text if isinstance(tree, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else f"({text})"


def _advise_reduction(code: Code) -> str:
    """Return advice for ``x[mask].sum()`` and ``x[mask].mean()``."""
    selection = _find_selection(code)
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
            if call.func.attr == "sum":  # 0 keeps whole numbers whole
                total = f"torch.where({mask}, {owner}, 0).sum()"
                return f"`{total}` is the same sum, at a fixed size (both of one shape)"
            return (
                f"`torch.where({mask}, {owner}, 0.0).sum() / {_in_brackets(mask)}.sum()` is the same mean, "
                "at a fixed size (both of one shape)"
            )
    return ""


def _advise_ignore_index(code: Code) -> str:
    """Return advice for a classification loss of two selections with one mask."""
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


def _advise_loss(code: Code) -> str:
    """Return advice for ``F.mse_loss(x[mask], y[mask])`` and similar losses."""
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
    whole = f"gapless.ops.{called_name(call)}({', '.join([*texts, *options])})"
    return f"`{whole}` is the same loss, at a fixed size (a mask of rows needs `.unsqueeze(-1)`)"


def _advise_selection(code: Code) -> str:
    selection = _find_selection(code)
    if selection is None:
        return ""
    _, owner, mask = selection
    return (
        f"keep `{owner}` at its full size, and pass the mask to what follows: the losses and means of "
        f"`gapless.ops`, or `torch.where({mask}, {owner}, other)`; with a bound, "
        f"`gapless.ops.compact({owner}, {mask}, size=n)` selects"
    )
