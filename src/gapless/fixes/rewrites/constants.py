"""Tensors that the code itself describes are made on the GPU: ``torch.full``, ``device=`` at the factory."""

from __future__ import annotations

import ast
import struct

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.places import Draft, FixPlace, has_open_options, is_module_call, keyword_of
from gapless.model.copies import IMMEDIATE
from gapless.rules._code import is_device

CODES = ("GAP120", "GAP121")
ORDER = 40  # before copies: what is made on the GPU needs none

_SAME_ANYWHERE = ("zeros", "ones", "eye", "full", "zeros_like", "ones_like", "full_like", "tril_indices")
"""Factories whose values are the same on each device, to the last bit; those of `arange` if it is whole."""
_MAKERS = ("tensor", "as_tensor")
_CONVERTIBLE = ("float32", "int64", "bool")
"""Dtypes that `torch.full` has for a Python number of the same value."""


def write(place: FixPlace) -> Draft:
    """Return the change of a tensor that is made on the CPU and copied."""
    call = place.call()
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda"):
        return _move_factory(place, call)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "where":
        return _leave_numbers(place, call)
    if not is_module_call(place, call, *_MAKERS) or not call.args or has_open_options(call):
        raise OtherForm("it makes no tensor of a number or a list")
    if keyword_of(call, "pin_memory") is not None or keyword_of(call, "device") is None:
        raise Refused("on which device the tensor is made is not said there")
    return _fill(place, call) if _is_number(call.args[0]) else _send(place, call)


def _is_number(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(inner, ast.Constant) and isinstance(inner.value, (int, float))


def _fill(place: FixPlace, call: ast.Call) -> Draft:
    """Return the change of ``torch.tensor(0.5, device=d)``."""
    file = place.file
    assert isinstance(call.func, ast.Attribute)
    if keyword_of(call, "dtype") is None and place.tensor.dtype not in _CONVERTIBLE:
        raise Refused("the default dtype was changed")
    end = file.span(call.func)[1]
    name = end - len(call.func.attr.encode(file.encoding))
    start = file.span(call.args[0])[0]
    return Draft(
        "fill in the number with a kernel", (file.edit(name, end, "full"), file.edit(start, start, "(), "))
    )


def _send(place: FixPlace, call: ast.Call) -> Draft:
    """Return the change of ``torch.tensor([…], device=d)``: a copy that the call itself makes."""
    if not 0 < place.bytes <= IMMEDIATE:
        raise Refused("the list is too large to be copied by the call itself")
    if isinstance(keyword_of(call, "requires_grad"), ast.Constant):
        raise Refused("the tensor needs a gradient")
    device = keyword_of(call, "device")
    assert device is not None
    file, end = place.file, place.file.span(call)[1]
    option = f".to({file.text(device)}, non_blocking=True)"
    edits = (file.remove_keyword(call, "device"), file.edit(end, end, option))
    return Draft("copy without waiting: so little is copied by the call itself", edits)


def _move_factory(place: FixPlace, call: ast.Call) -> Draft:
    """Return the change of ``torch.zeros(n).to(d)``."""
    assert isinstance(call.func, ast.Attribute)
    source, file = call.func.value, place.file
    if not isinstance(source, ast.Call) or not is_module_call(place, source, *_SAME_ANYWHERE, "arange"):
        raise OtherForm("what is copied is not made there")
    if has_open_options(source) or any(
        keyword_of(source, name) for name in ("device", "out", "pin_memory", "generator", "requires_grad")
    ):
        raise Refused("the tensor's options bind it to the CPU")
    device = next(iter(call.args), keyword_of(call, "device"))
    options = {each.arg for each in call.keywords} - {"device", "non_blocking"}
    if len(call.args) > 1 or options or (device is not None and not is_device(device)):
        raise OtherForm("the copy also converts")
    name = source.func.attr if isinstance(source.func, ast.Attribute) else ""
    if name == "arange" and not all(
        isinstance(each, ast.Constant) and type(each.value) is int for each in source.args
    ):
        raise OtherForm("a range of fractions is rounded in another way on the GPU")
    text = file.text(device) if device is not None else '"cuda"'
    end = file.span(source)[1]
    edits = (file.add_argument(source, f"device={text}"), file.edit(end, file.span(call)[1], ""))
    return Draft("make the tensor on the GPU", edits)


def _leave_numbers(place: FixPlace, call: ast.Call) -> Draft:
    """Return the change of ``torch.where(mask, torch.tensor(0.0), x)``."""
    numbers = [
        value.args[0]
        for value in call.args[1:]
        if isinstance(value, ast.Call)
        and is_module_call(place, value, "tensor")
        and len(value.args) == 1
        and not value.keywords
        and _is_number(value.args[0])
    ]
    if len(numbers) != 1 or len(call.args) != 3:
        raise OtherForm("no operand of `where` is a tensor of a number")
    (number,) = numbers
    edit = place.file.replace(place.file.source.parents[number], place.file.text(number))
    return Draft("a number needs no copy", (edit,), "exact" if _is_short(number) else "rounding")


def _is_short(number: ast.expr) -> bool:
    """Whether float32, to which the tensor was rounded, holds a number exactly.

    >>> [_is_short(ast.parse(text, mode="eval").body) for text in ("-0.5", "0.1", "1e60")]
    [True, False, False]
    """
    value = float(ast.literal_eval(number))
    try:
        return struct.unpack("f", struct.pack("f", value)) == (value,)
    except OverflowError:
        return False
