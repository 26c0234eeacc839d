"""Choose a remedy by what the value that is read is for: `_REMEDIES` has one function for each kind of use.

What is needed at once comes first, and is never read "every N steps"; that is said only where every use is
known and only shows the value. At most two remedies are given, the nearest use of each kind.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NamedTuple

from gapless.model import Site, Use
from gapless.model.use import NEEDED_AT_ONCE, UNDECIDED, UseKind
from gapless.rules._code import Code, called_name, not_in_place, parse_line

_MAX_REMEDIES = 2
"""Remedies in one advice: more is not read."""
_READERS = ("item", "tolist", "cpu", "numpy", "float", "int", "bool")
_KEPT: frozenset[UseKind] = frozenset({"accumulator", "append", "dict", "best"})
"""Uses that keep the value for later: what is done with it then needs no remedy of its own."""
_AFTERWARDS: frozenset[UseKind] = frozenset({"show", "numpy", "unused", "checkpoint"})
"""Uses of what was kept."""


class ReadValue(NamedTuple):
    """A read: its site, its line, the text of the tensor that is read, and all kinds of its uses."""

    site: Site
    code: Code | None
    value: str
    kinds: frozenset[UseKind]

    @property
    def tensor(self) -> str:
        """The text of the tensor without its graph."""
        bare = self.value or "value"
        return bare if bare.endswith(".detach()") else f"{_primary(bare)}.detach()"

    @property
    def is_soft(self) -> bool:
        """Whether every use is known and none needs the value at once."""
        return not self.kinds & (NEEDED_AT_ONCE | UNDECIDED)


def advise_by_use(site: Site, code: Code | None) -> str:
    """Return what to write instead of the read at `site`, in the line `code`; "" if its uses are unknown."""
    read = _read_value_at(site, code)
    texts = [_REMEDIES[use.kind](read, use) for use in _leading_uses(site)]
    return "; ".join(dict.fromkeys(text for text in texts if text))


def change_by_use(site: Site) -> str:
    """Return the same in a few words: of the use that matters most; "" if the uses are unknown."""
    return next((_CHANGES[use.kind] for use in _leading_uses(site)), "")


def advise_selection(site: Site, code: Code | None, own: str) -> str:
    """Return what to write instead of a selection: `own` where its rows are used, otherwise by its uses."""
    if not _rows_are_used(site):
        return advise_by_use(site, code) or own
    empty = next((use for use in site.uses if use.kind == "empty"), None)
    return f"{own}; {_empty(_read_value_at(site, code), empty)}" if empty is not None else own


def change_selection(site: Site) -> str:
    """Return the same in a few words; "" where the rows of the selection are used."""
    return "" if _rows_are_used(site) else change_by_use(site)


def _rows_are_used(site: Site) -> bool:
    """Whether more of a selection is used than its number of rows, or its uses are unknown."""
    kinds = {use.kind for use in site.uses}
    return not kinds or ("selection" in kinds and "element" not in kinds)


def is_only(site: Site, *kinds: UseKind) -> bool:
    """Whether the uses are known and all of these kinds."""
    return bool(site.uses) and {use.kind for use in site.uses} <= set(kinds)


def read_value(site: Site) -> str:
    """Return the text of the tensor that the site reads; "" if it is unknown or was cut."""
    if not site.expression or "…" in site.expression or (code := parse_line(site.expression)) is None:
        return ""
    node = code.statement.value if isinstance(code.statement, ast.Expr) else None
    if isinstance(node, ast.Call) and called_name(node) in _READERS:
        if isinstance(node.func, ast.Attribute):
            return code.primary(node.func.value)
        return code.primary(node.args[0]) if len(node.args) == 1 else ""
    return code.text(node) if node is not None else ""


def _read_value_at(site: Site, code: Code | None) -> ReadValue:
    return ReadValue(site, code, read_value(site), frozenset(use.kind for use in site.uses))


def _leading_uses(site: Site) -> list[Use]:
    """Return the nearest use of each of the kinds that the advice is about."""
    kinds = {use.kind for use in site.uses}
    if "element" in kinds:
        kinds &= {
            "element",
            "index",
        }  # once the loop has numbers, nothing that it does with them waits
    if kinds & _KEPT:
        kinds -= _AFTERWARDS
    if len(kinds) > 1:
        kinds -= {"unused"}
    ordered = [next(use for use in site.uses if use.kind == kind) for kind in _REMEDIES if kind in kinds]
    return ordered[:_MAX_REMEDIES]


def _primary(text: str) -> str:
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else f"({text})"


def _at(read: ReadValue, use: Use) -> str:
    """Return ``line 12`` of the use, with its file where that is another; "" for the line of the read."""
    if use.file:
        return f" ({use.file.replace(chr(92), '/').rpartition('/')[2]}:{use.line})"
    line = read.site.line
    return f" (line {use.line})" if line is not None and use.line != line.line else ""


def _named(read: ReadValue, use: Use) -> str:
    return f"`{use.text}`{_at(read, use)}"


# -- needed at once --------------------------------------------------------------------------------


def _element(read: ReadValue, use: Use) -> str:
    walked = use.text.split("`, `")
    if len(walked) > 1 or read.site.mechanism == "size" or read.value != _loop_variable(read.value):
        copies = " and ".join(f"`{text}.cpu()`" for text in walked)
        return (
            f"copy once, before the loop, and let it walk over the copies: {copies} (otherwise each "
            "turn syncs)"
        )
    return (
        f"read all elements at once, before the loop: walk over `{_primary(walked[0])}.tolist()`, whose "
        "elements are "
        "numbers on the CPU"
    )


def _loop_variable(text: str) -> str:
    return text if text.isidentifier() or text.endswith("]") else ""


def _size(read: ReadValue, use: Use) -> str:
    code = parse_line(use.text)
    call = code.only_call("view", "reshape") if code is not None else None
    owner = code.subject(call) if code is not None and call is not None else ""
    if owner.isidentifier():
        return (
            f"{_named(read, use)} needs a size in each step: give one that the CPU knows "
            f"(`{owner}.shape[0]`, or `-1` "
            "for one of them)"
        )
    return (
        f"{_named(read, use)} needs a size in each step: take one that the CPU knows (a `shape`, a "
        "length from the "
        "batch, `-1` in a view), or the largest possible with a mask"
    )


def _slice(read: ReadValue, use: Use) -> str:
    if read.site.call.endswith("__index__") and use.text == read.site.expression:
        return f"{_named(read, use)} slices on the CPU: keep the bound as a Python number from the start"
    bound = _upper_bound(use.text)
    if bound:
        owner, size = bound
        return (
            f"{_named(read, use)} needs the number in each step: `{size}` is a bound that the CPU knows: "
            "keep the "
            f"full shape and mask (`torch.arange({size}, device={owner}.device) < "
            f"{read.value or 'length'}`), or keep "
            "the lengths on the CPU from the start"
        )
    return (
        f"{_named(read, use)} needs the number in each step: keep the full shape and a mask, or take the "
        "length "
        "from what the CPU knows"
    )


def _upper_bound(text: str) -> tuple[str, str] | None:
    """Return ``ids`` and ``ids.shape[1]`` of ``ids[:, :n]``; None if that is not the form."""
    code = parse_line(text)
    subscript = code.only_subscript() if code is not None else None
    if code is None or subscript is None or not isinstance(subscript.value, (ast.Name, ast.Attribute)):
        return None
    parts = subscript.slice.elts if isinstance(subscript.slice, ast.Tuple) else [subscript.slice]
    place = next(
        (n for n, part in enumerate(parts) if isinstance(part, ast.Slice) and part.upper is not None), None
    )
    if place is None or any(isinstance(part, ast.Constant) and part.value is Ellipsis for part in parts):
        return None
    owner = code.text(subscript.value)
    return (owner, f"{owner}.shape[{place}]") if owner else None


def _range(read: ReadValue, use: Use) -> str:
    return (
        f"{_named(read, use)} needs the number in each step: loop up to one that the CPU knows (a `shape`, a "
        f"maximum), and mask what is beyond `{read.value or 'it'}`"
    )


def _index(read: ReadValue, use: Use) -> str:
    code = parse_line(use.text)
    subscript = code.only_subscript() if code is not None else None
    owner = code.text(subscript.value) if code is not None and subscript is not None else ""
    position = read.value if read.value and read.value != use.text else ""
    if subscript is not None and not position and code is not None:
        position = code.text(subscript.slice)
    if (
        not owner
        or not position.isidentifier()
        or (code is not None and isinstance(code.statement, ast.Assign))
    ):
        return (
            f"{_named(read, use)}: index a GPU tensor with an index tensor (`index_select`), without "
            "reading it"
        )
    if read.site.call.endswith("__index__"):
        return (
            f"`{owner}` is indexed on the CPU: make it a GPU tensor once, before the loop, and select with "
            f"`index_select`, or keep `{position}` as a Python number"
        )
    return (
        f"`{owner}.index_select(0, {position}.reshape(1)).squeeze(0)` selects on the GPU; if `{owner}` "
        "is on the CPU, "
        f"move it there once, before the loop (`{owner} = {owner}.to({position}.device)`)"
    )


def _key(read: ReadValue, use: Use) -> str:
    return (
        f"{_named(read, use)} needs the number: read all keys with one `tolist()`, before the loop over them"
    )


def _condition(read: ReadValue, use: Use) -> str:
    condition = _without_reads(use.text)
    chosen = f"`torch.where({condition}, a, b)`" if condition else "`torch.where(condition, a, b)`"
    return (
        f"keep `{read.tensor}` on the GPU, compute both outcomes and choose: {chosen}{_at(read, use)}; "
        "or decide by the value of an "
        f"earlier step: `gapless.ops.read_later(value={read.tensor})`"
    )


def _without_reads(text: str) -> str:
    """Return a condition whose reads are left out; "" if it has several, or is no comparison."""
    code = parse_line(text)
    if code is None or not isinstance(code.statement, ast.Expr):
        return ""
    calls = code.calls("item")
    if len(calls) > 1 or isinstance(code.statement.value, ast.BoolOp):
        return ""
    return code.replace((calls[0], code.subject(calls[0]))) if calls and code.subject(calls[0]) else text


def _stop(read: ReadValue, use: Use) -> str:
    return (
        f"let the loop stop a few turns late: `later = gapless.ops.read_later(value={read.tensor})`, and "
        "look at "
        f"`later.result()` once `later.ready()`{_at(read, use)}"
    )


def _environment(read: ReadValue, use: Use) -> str:
    return (
        f"{_named(read, use)} needs it in each step: run several environments in a batch, so that one "
        "read serves all"
    )


def _empty(read: ReadValue, use: Use) -> str:
    return (
        f"leave out the check{_at(read, use)}: sums weighted by the mask are 0 where nothing is "
        "selected; divide by "
        "`mask.sum().clamp(min=1)`"
    )


def _selection(read: ReadValue, use: Use) -> str:
    return ""  # the selecting operator's rule knows the form


# -- not needed at once ------------------------------------------------------------------------------


def _check(read: ReadValue, use: Use) -> str:
    return (
        f"check on the GPU without a sync{_at(read, use)}: `torch._assert_async(condition)` with a bool "
        "tensor; or "
        "collect a flag there (`bad |= condition`) and look at it a step later: "
        "`gapless.ops.read_later(bad=bad)`"
    )


def _finite(read: ReadValue, use: Use) -> str:
    checked = read.value if read.site.call.endswith("item") and read.value else "value"
    return (
        f"collect the answer on the GPU (`bad |= ~torch.isfinite({checked}).all()`){_at(read, use)} and "
        "look at it a "
        "step later: `gapless.ops.read_later(bad=bad)`"
    )


def _best(read: ReadValue, use: Use) -> str:
    compared = _compared(read.value)
    less = "min(" in use.text or "<" in use.text
    better = f"best, {read.tensor}"
    if compared is not None:
        less, better = compared
    pick = "torch.minimum" if less else "torch.maximum"
    return f"keep the best on the GPU{_at(read, use)}: `{pick}({better})`, and read it at the end"


def _compared(value: str) -> tuple[bool, str] | None:
    """Return whether ``loss < best`` chooses the smaller one, and ``loss, best``; None for other texts."""
    code = parse_line(value) if value else None
    node = code.statement.value if code is not None and isinstance(code.statement, ast.Expr) else None
    if code is None or not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    less = isinstance(node.ops[0], (ast.Lt, ast.LtE))
    sides = code.text(node.left), code.text(node.comparators[0])
    return (less, ", ".join(sides)) if all(sides) else None


def _tensor(read: ReadValue, use: Use) -> str:
    return (
        f"leave out the read: {_named(read, use)} computes with `{read.tensor}` itself (Python's and "
        "`math`'s "
        "functions on the way become torch's: `max(n, 1)` is `n.clamp(min=1)`)"
    )


def _accumulator(read: ReadValue, use: Use) -> str:
    whole = _is_whole(read.value)
    changed = _replace_read(use.text, read, double=not whole)
    code = parse_line(use.text)
    target = ""
    if code is not None and isinstance(code.statement, (ast.AugAssign, ast.Assign)):
        statement = code.statement
        target = code.text(statement.target if isinstance(statement, ast.AugAssign) else statement.targets[0])
    summed = not_in_place(changed) if changed else f"{read.tensor}.double()"
    total = f"`{target}`" if target else "the sum"
    exactly = "" if whole else ", in float64 as Python does"
    return f"sum up on the GPU{exactly}{_at(read, use)}: `{summed}`, and read {total} only where it is shown"


def _is_whole(value: str) -> bool:
    """Whether the text says that the tensor is a count: a sum of a comparison."""
    return value.endswith(".sum()") and any(sign in value for sign in ("==", "!=", "<", ">", ".eq(", ".ne("))


def _replace_read(text: str, read: ReadValue, double: bool = False, keep: bool = False) -> str:
    """Return the statement `text` with the tensor in place of its read; "" if it cannot be quoted.

    `keep`: the tensor is kept for later, so that it is a copy where it may change in place.
    """
    if "…" in text or (code := parse_line(text)) is None:
        return ""
    reads = [call for call in code.calls(*_READERS) if code.text(call) == read.site.expression]
    kept = f"{read.tensor}.double()" if double else read.tensor
    if keep and read.value and (line := parse_line(read.value)) and isinstance(line.statement, ast.Expr):
        kept += ".clone()" if line.kept(line.statement.value).endswith(".clone()") else ""
    return code.replace((reads[0], kept)) if len(reads) == 1 else ""


def _append(read: ReadValue, use: Use) -> str:
    changed = _replace_read(use.text, read, keep=True)
    code = parse_line(use.text)
    call = code.only_call("append") if code is not None else None
    values = code.subject(call) if code is not None and call is not None else ""
    alone = (
        code is not None
        and call is not None
        and [code.text(argument) for argument in call.args] == [read.site.expression]
    )
    if changed and values and alone:
        return f"keep the tensor: `{changed}`, and read all at once: `torch.stack({values}).tolist()`"
    return (
        f"append the tensor{_at(read, use)} (`{read.tensor}`), and read all at once: "
        "`torch.stack(values).tolist()`"
    )


def _dict(read: ReadValue, use: Use) -> str:
    return (
        f"keep the tensor in the dict (`{read.tensor}`), and read all its values with one sync where "
        "they are used"
    )


def _show(read: ReadValue, use: Use) -> str:
    later = f"`gapless.ops.read_later(value={read.tensor})`"
    if read.is_soft and read.kinds <= {"show", "numpy", "unused", "dict"}:
        return (
            f"keep `{read.tensor}` on the GPU, and show it every N steps (`if step % 100 == 0:`), or the "
            "value of an "
            f"earlier step: {later}"
        )
    return f"a report{_at(read, use)} can show the value of an earlier step: {later}"


def _count(read: ReadValue, use: Use) -> str:
    code = parse_line(read.site.expression) if "…" not in read.site.expression else None
    node = code.statement.value if code is not None and isinstance(code.statement, ast.Expr) else None
    if code is None or node is None:
        return "`mask.sum()` counts on the GPU without selecting"
    if isinstance(node, ast.Subscript) and (mask := code.primary(node.slice)):
        return f"only the number is used: `{mask}.sum()` counts on the GPU without selecting"
    if isinstance(node, ast.Call):
        plain = isinstance(node.func, ast.Attribute) and code.text(node.func.value) in ("torch", "th")
        subject = (code.text(node.args[0]) if node.args else "") if plain else code.subject(node)
        if "unique" in called_name(node):
            return f"only the number is used: `gapless.ops.count_unique({subject or 'x'})`"
        if called_name(node) == "masked_select" and node.args:
            mask = code.primary(node.args[-1])
            return f"only the number is used: `{mask}.sum()` counts on the GPU without selecting"
        return f"only the number is used: `torch.count_nonzero({subject or 'mask'})` counts on the GPU"
    return "only the number is used: `mask.sum()` counts on the GPU without selecting"


def _numpy(read: ReadValue, use: Use) -> str:
    return f"compute {_named(read, use)} in torch on the GPU, or copy everything that NumPy needs at once"


def _checkpoint(read: ReadValue, use: Use) -> str:
    return (
        f"{_named(read, use)} needs it: copy into pinned memory with `non_blocking=True` and write in a "
        "thread, or "
        "save less often"
    )


def _advise_deletion(read: ReadValue, use: Use) -> str:
    return "nothing uses the value: delete the read"


def _library(read: ReadValue, use: Use) -> str:
    return (
        f"used by {_named(read, use)}, which was not followed: pass the tensor (`{read.tensor}`) if it "
        "takes one; "
        "what only logs can get the value of an earlier step (`gapless.ops.read_later`)"
    )


def _leaves(read: ReadValue, use: Use) -> str:
    where = "returned to a caller" if use.kind == "returned" else "kept in an attribute"
    return (
        f"{where} that was not followed{_at(read, use)}: hand on `{read.tensor}`, and read it where a "
        "number is needed"
    )


def _advise_without_use(read: ReadValue, use: Use) -> str:
    return (
        f"what {_named(read, use)} does with it was not followed: keep `{read.tensor}` on the GPU up to "
        "where a "
        "number is needed"
    )


_REMEDIES: dict[UseKind, Callable[[ReadValue, Use], str]] = {
    "element": _element,
    "slice": _slice,
    "size": _size,
    "range": _range,
    "index": _index,
    "key": _key,
    "environment": _environment,
    "count": _count,
    "empty": _empty,
    "selection": _selection,
    "condition": _condition,
    "stop": _stop,
    "finite": _finite,
    "check": _check,
    "best": _best,
    "tensor": _tensor,
    "accumulator": _accumulator,
    "append": _append,
    "dict": _dict,
    "show": _show,
    "numpy": _numpy,
    "checkpoint": _checkpoint,
    "library": _library,
    "returned": _leaves,
    "stored": _leaves,
    "undecided": _advise_without_use,
    "unused": _advise_deletion,
}
"""The remedy of each kind of use, in the order in which they are given."""

_CHANGES: dict[UseKind, str] = {
    "element": "read all elements at once, before the loop",
    "size": "take the size from what the CPU knows",
    "slice": "mask instead of slicing, or keep lengths on the CPU",
    "range": "loop up to a number that the CPU knows",
    "index": "select with a mask or `index_select`, not a GPU number",
    "key": "read all keys at once",
    "environment": "run several environments in a batch",
    "count": "count on the GPU instead of selecting",
    "empty": "leave out the check for an empty selection",
    "selection": "replace the selection by its mask",
    "condition": "choose on the GPU with `torch.where`",
    "stop": "stop the loop by an earlier value (`read_later`)",
    "finite": "collect the check on the GPU, look at it a step later",
    "check": "check on the GPU, or look at it a step later",
    "best": "keep the best on the GPU, read it at the end",
    "tensor": "compute with the tensor itself, not its number",
    "accumulator": "sum up on the GPU, read the sum where it is shown",
    "append": "keep the tensors, read all at once",
    "dict": "keep the tensors, read all at once",
    "show": "show an earlier step's value, or every N steps",
    "numpy": "compute in torch, or copy all at once",
    "checkpoint": "save in a thread from pinned memory, or less often",
    "library": "pass the tensor on, or an earlier step's value",
    "returned": "return the tensor, read it where a number is needed",
    "stored": "keep the tensor, read it where a number is needed",
    "undecided": "keep the tensor up to where a number is needed",
    "unused": "delete the read",
}
"""The same in a few words."""

READ_ONCE: frozenset[str] = frozenset(
    _CHANGES[kind] for kind in ("element", "accumulator", "append", "dict", "best", "show", "finite", "numpy")
)
"""Changes after which what was read many times is read once, at the end or before the loop."""
