"""Losses, sums and means of what a mask selects take the mask, and select nothing."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.places import (
    Draft,
    FixPlace,
    has_open_options,
    import_ops,
    is_whole,
    keyword_of,
    qualified_name,
)
from gapless.model.fix import Edit

CODES = ("GAP112",)

_ELEMENTWISE = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
"""Losses of pairs of elements, to which a mask broadcasts."""
_BY_CLASS = ("cross_entropy", "nll_loss")
"""Losses of logits (N, C) and classes (N,), which take a mask (N,)."""
_OPTIONS = {"reduction", "weight", "ignore_index", "label_smoothing"}
"""Arguments of losses that `gapless.ops` has, too."""
_SUMS = {"sum": "masked_sum", "mean": "masked_mean"}


def write(place: FixPlace) -> Draft:
    """Return the change of a selection by a mask of which only a reduction is used."""
    node, file = place.node, place.file
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        raise OtherForm("it is no `x[mask]`")
    if len(place.site.tensors) != 2 or place.site.tensors[1].dtype != "bool":
        raise Refused("what selects is not one mask")
    parent = file.source.parents[node]
    outer = file.source.parents.get(parent)
    if isinstance(parent, ast.Attribute) and isinstance(outer, ast.Call) and parent.attr in _SUMS:
        if outer.args or outer.keywords:
            raise Refused(f"`.{parent.attr}()` has arguments")
        text = f"ops.{_SUMS[parent.attr]}({file.text(node.value)}, {_mask(place, node)})"
        return Draft("sum up under the mask", (file.replace(outer, text), *import_ops(place)), "rounding")
    if isinstance(parent, ast.Call) and node in parent.args[:2]:
        return _loss(place, parent)
    raise Refused("the selected elements are used one by one")


def _mask(place: FixPlace, node: ast.Subscript) -> str:
    """Return the mask's text, with as many dimensions as what it selects from."""
    values, mask = place.site.tensors
    missing = len(values.shape) - len(mask.shape)
    text = place.file.text(node.slice)
    return f"{place.file.primary(node.slice)}{'.unsqueeze(-1)' * missing}" if missing else text


def _loss(place: FixPlace, call: ast.Call) -> Draft:
    file, name = place.file, qualified_name(place, call.func)
    loss = name.removeprefix("torch.nn.functional.")
    if loss == name or loss not in (*_ELEMENTWISE, *_BY_CLASS):
        raise Refused("the selected elements are used one by one")
    selections = [each for each in call.args[:2] if isinstance(each, ast.Subscript)]
    if len(call.args) != 2 or len(selections) != 2 or has_open_options(call):
        raise Refused("not both of input and target are selected by a mask")
    if len({ast.dump(each.slice) for each in selections}) != 1:
        raise Refused("input and target are selected by different masks")
    by_class = loss in _BY_CLASS
    if not {each.arg for each in call.keywords} <= (_OPTIONS if by_class else {"reduction"}):
        raise Refused("the loss has arguments that `gapless.ops` does not know, or needs for each element")
    reduction = keyword_of(call, "reduction")
    if reduction is not None and getattr(reduction, "value", "") not in _SUMS:
        raise Refused("the loss of each selected element is used")
    mask = selections[0].slice
    if any(isinstance(each, (ast.Call, ast.NamedExpr, ast.Await)) for each in ast.walk(mask)):
        raise Refused("the mask is made anew for each of the two")
    dimensions = [len(tensor.shape) for tensor in place.site.tensors]
    samples = (2,) if place.node is selections[0] or not is_whole(place.site.tensors[0]) else (1,)
    if by_class and (dimensions[1] != 1 or dimensions[0] not in samples):
        raise Refused("the mask is not one of the samples")
    text = file.text(mask) if by_class else _mask(place, selections[0])
    edits: list[Edit] = [
        file.replace(call.func, f"ops.{loss}"),
        *(file.edit(file.span(each.value)[1], file.span(each)[1], "") for each in selections),
        file.add_argument(call, f"mask={text}"),
        *import_ops(place),
    ]
    return Draft("let the loss take the mask", tuple(edits), "rounding")
