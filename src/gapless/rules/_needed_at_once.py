"""What to write where the value of a read is needed at once: reading it less often is no remedy."""

from __future__ import annotations

import ast
import math
from typing import NamedTuple

from gapless.model import Use
from gapless.rules._code import Code, parse_line
from gapless.rules._read_value import ReadValue, bracket, expression_of


def advise_element(read: ReadValue, use: Use) -> str:
    walked = use.text.split("`, `")
    place = read.value.removeprefix(walked[0])
    indexed = place != read.value and place.startswith("[")
    computed = bool(read.value) and not (read.value.isidentifier() or read.value.endswith("]"))
    if len(walked) > 1 or read.site.mechanism == "size" or computed:
        copies = " and ".join(f"`{text}.cpu()`" for text in walked)
        return (
            f"copy once, before the loop, and read from the copies in it: {copies} (otherwise each turn "
            "syncs)"
        )
    values = f"`{bracket(walked[0])}.tolist()`"
    if indexed:
        element = place.replace(", ", "][")
        return f"read all elements at once, before the loop: {values}, whose `{element}` is on the CPU"
    return f"read all elements at once, before the loop: walk over {values}, whose elements are on the CPU"


def advise_size(read: ReadValue, use: Use) -> str:
    code = parse_line(use.text)
    call = code.only_call("view", "reshape") if code is not None else None
    owner = code.subject(call) if code is not None and call is not None else ""
    if owner.isidentifier():
        return (
            f"{read.name(use)} needs a size in each step: give one that the CPU knows (`{owner}.shape[0]`, "
            "or `-1` for one of them)"
        )
    return (
        f"{read.name(use)} needs a size in each step: take one that the CPU knows (a `shape`, a length "
        "from the batch, `-1` in a view), or the largest possible with a mask"
    )


def advise_slice(read: ReadValue, use: Use) -> str:
    own = use.text == read.site.expression
    bound = _upper_bound(use.text)
    if (read.site.call.endswith("__index__") and own) or (bound and bound.owner in use.on_cpu):
        return f"{read.name(use)} slices on the CPU: keep the bound as a Python number from the start"
    if bound:
        length = bound.text if own else read.value or bound.text
        return (
            f"{read.name(use)} needs the number in each step: `{bound.size}` is a bound that the CPU knows: "
            f"keep the full shape and mask (`torch.arange({bound.size}, device={bound.owner}.device) < "
            f"{length}`), or keep the lengths on the CPU from the start"
        )
    return (
        f"{read.name(use)} needs the number in each step: keep the full shape and a mask, or take the "
        "length from what the CPU knows"
    )


class _UpperBound(NamedTuple):
    """The upper bound `text` of a slice of `owner`, and the `size` that the CPU knows."""

    owner: str
    size: str
    text: str


def _upper_bound(text: str) -> _UpperBound | None:
    """Return ``ids``, ``ids.shape[1]`` and ``n`` of ``ids[:, :n]``; None if that is not the form."""
    code, subscript = _parse_subscript(text)
    if code is None or subscript is None or not isinstance(subscript.value, (ast.Name, ast.Attribute)):
        return None
    parts = subscript.slice.elts if isinstance(subscript.slice, ast.Tuple) else [subscript.slice]
    place, bounds = next(
        ((n, part) for n, part in enumerate(parts) if isinstance(part, ast.Slice) and part.upper is not None),
        (0, ast.Slice()),
    )
    if bounds.upper is None or bounds.lower is not None or bounds.step is not None:
        return None
    if any(isinstance(part, ast.Constant) and part.value is Ellipsis for part in parts):
        return None
    owner, upper = code.text(subscript.value), code.operand(bounds.upper)
    return _UpperBound(owner, f"{owner}.shape[{place}]", upper) if owner and upper else None


def _parse_subscript(text: str) -> tuple[Code | None, ast.Subscript | None]:
    """Return the parsed `text` and its subscript, if it has exactly one."""
    code = parse_line(text)
    return code, code.only_subscript() if code is not None else None


def advise_range(read: ReadValue, use: Use) -> str:
    return (
        f"{read.name(use)} needs the number in each step: loop up to one that the CPU knows (a `shape`, a "
        f"maximum), and mask what is beyond `{read.value or 'it'}`"
    )


def advise_index(read: ReadValue, use: Use) -> str:
    owner, position = _index_form(read, use)
    if not owner and (on_cpu := _indexed_on_cpu(use)):
        return (
            f"{read.name(use)}: `{on_cpu}` is on the CPU: move it to the GPU once, before the loop, and "
            "index it there with an index tensor (`index_select` to read, `index_copy_` to write); or keep "
            "the index as a number on the CPU"
        )
    if not owner:
        return (
            f"{read.name(use)}: index a GPU tensor with an index tensor (`index_select` to read, "
            "`index_copy_` to write), without reading it"
        )
    if read.site.call.endswith("__index__"):
        return (
            f"`{owner}` is indexed on the CPU: make it a GPU tensor once, before the loop, and select with "
            f"`index_select`, or keep `{position}` as a Python number"
        )
    at = bracket(position)
    waited = read.site.tensors[0] if read.site.tensors else None
    is_single = math.prod(waited.shape) == 1 if waited is not None else read.site.mechanism == "read"
    selected = f"`{owner}.index_select(0, {at}.reshape(1)).squeeze(0)`" if is_single else f"`{owner}[{at}]`"
    if waited is not None and waited.dtype == "bool":  # a mask would sync on the GPU as well
        return f"`{owner}` is selected from by a mask: keep `{position}` on the CPU from the start"
    if owner in use.on_cpu:
        return (
            f"`{owner}` is on the CPU: move it to the GPU once, before the loop (`{owner} = {owner}.to({at}."
            f"device)`), and select there: {selected}; or keep `{position}` on the CPU from the start"
        )
    return (
        f"{selected} selects on the GPU{'' if owner in use.on_gpu else f', where `{owner}` is a GPU tensor'}"
    )


def _index_form(read: ReadValue, use: Use) -> tuple[str, str]:
    """Return what is indexed and the position as a tensor; empty if the text does not say both."""
    code, subscript = _parse_subscript(use.text)
    if code is None or subscript is None or expression_of(code) is None:
        return "", ""
    if not isinstance(subscript.slice, (ast.Name, ast.Attribute, ast.Call, ast.BinOp)):
        return "", ""
    owner, position = code.text(subscript.value), code.text(subscript.slice)
    if use.text != read.site.expression:  # the position is a number that was read
        plain = isinstance(subscript.slice, ast.Name) or position == read.site.expression
        position = read.value if plain else ""
    return (owner, position) if owner and position else ("", "")


def _indexed_on_cpu(use: Use) -> str:
    """Return the tensor of the CPU that the code of `use` indexes; "" if there is none."""
    code = parse_line(use.text)
    indexed = (
        (each.value for each in ast.walk(code.statement) if isinstance(each, ast.Subscript)) if code else ()
    )
    return next((text for text in map(ast.unparse, indexed) if text in use.on_cpu), "")


def advise_key(read: ReadValue, use: Use) -> str:
    return f"{read.name(use)} needs the number: read all keys with one `tolist()`, before the loop over them"


def advise_condition(read: ReadValue, use: Use) -> str:
    if read.site.mechanism == "size":
        return (
            f"choose by the count on the GPU (`torch.where(count > n, a, b)`){read.place(use)}; or decide by "
            "that of an earlier step: `gapless.ops.read_later(count=count)`"
        )
    condition = _without_reads(use.text)
    chosen = f"`torch.where({condition}, a, b)`" if condition else "`torch.where(condition, a, b)`"
    return (
        f"keep `{read.tensor}` on the GPU, compute both outcomes and choose: {chosen}{read.place(use)}; or "
        f"decide by the value of an earlier step: `gapless.ops.read_later(value={read.looked_at(use)})`"
    )


def _without_reads(text: str) -> str:
    """Return a condition whose reads are left out; "" if it has several, or is no comparison."""
    code = parse_line(text)
    node = expression_of(code)
    if code is None or node is None or isinstance(node, ast.BoolOp):
        return ""
    calls = code.calls("item")
    if len(calls) > 1:
        return ""
    subject = code.subject(calls[0]) if calls else ""
    return code.replace((calls[0], subject)) if subject else text


def advise_stop(read: ReadValue, use: Use) -> str:
    return (
        f"let the loop stop a few turns late: `later = gapless.ops.read_later(value={read.looked_at(use)})`, "
        f"and look at `later.result()` once `later.ready()`{read.place(use)}"
    )


def advise_environment(read: ReadValue, use: Use) -> str:
    return (
        f"{read.name(use)} needs it in each step: run several environments in a batch, so that one read "
        "serves all"
    )


def advise_emptiness(read: ReadValue, use: Use) -> str:
    return (
        f"leave out the check{read.place(use)}: sums weighted by the mask are 0 where nothing is selected; "
        "divide by `mask.sum().clamp(min=1)`"
    )


def advise_selection(read: ReadValue, use: Use) -> str:
    return ""  # the selecting operator's rule knows the form
