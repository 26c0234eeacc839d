"""What to write where the value of a read is not needed at once, or nobody knows what for."""

from __future__ import annotations

import ast

from gapless.model import Use
from gapless.model.use import UseKind
from gapless.rules._code import Code, called_name, is_module, keyword, not_in_place, parse_line
from gapless.rules._read_value import ReadValue, bracket, expression_of, is_count, parse_whole, summed_in

_SIZED = ("unique", "unique_consecutive", "nonzero", "argwhere", "masked_select", "bincount")
"""Calls that sync on the GPU as well: the size of what they return depends on the values."""
_FACTORIES = ("ones", "zeros", "full", "eye", "arange", "linspace", "rand", "randn", "randint", "empty")
"""Functions of torch that make a tensor on the CPU unless they are given a device."""
_SOFT: frozenset[UseKind] = frozenset({"show", "numpy", "unused", "dict"})
"""Uses of a value that may as well be read every N steps, where it has no others."""


_SHOWN: frozenset[UseKind] = _SOFT | {"append", "checkpoint"}
"""Uses of a sum in its loop that read it seldom."""


def advise_check(read: ReadValue, use: Use) -> str:
    return (
        f"check on the GPU without a sync{read.place(use)}: `torch._assert_async(condition)` with a bool "
        "tensor; or collect a flag there (`bad |= condition`) and look at it a step later: "
        "`gapless.ops.read_later(bad=bad)`"
    )


def advise_finiteness(read: ReadValue, use: Use) -> str:
    checked = read.value if read.value != read.site.expression else use.text
    if not checked or "…" in checked or parse_line(checked) is None:
        checked = "value"
    good = f"torch.isfinite({checked}).all()"
    return (
        f"collect the answer on the GPU (`bad |= ~{good}`){read.place(use)} and look at it a step later: "
        f"`gapless.ops.read_later(bad=bad)`; to skip the step, `gapless.ops.step_if(optimizer, {good})`"
    )


def advise_best(read: ReadValue, use: Use) -> str:
    compared = _compared(read.value)
    less = "min(" in use.text or "<" in use.text
    better = f"best, {read.tensor}"
    if compared is not None:
        less, better = compared
    pick = "torch.fmin" if less else "torch.fmax"  # as in Python, NaN is not kept
    return (
        f"keep the best on the GPU{read.place(use)}: `{pick}({better})`, with a tensor to begin with, and "
        "read it at the end"
    )


def _compared(value: str) -> tuple[bool, str] | None:
    """Return whether ``loss < best`` chooses the smaller one, and ``loss, best``; None for other texts."""
    code = parse_line(value) if value else None
    node = expression_of(code)
    if code is None or not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    less = isinstance(node.ops[0], (ast.Lt, ast.LtE))
    sides = code.text(node.left), code.text(node.comparators[0])
    return (less, ", ".join(sides)) if all(sides) else None


def advise_tensor(read: ReadValue, use: Use) -> str:
    code = parse_line(use.text)
    call = code.only_call(*_SIZED) if code is not None else None
    if call is not None:
        return (
            f"{read.name(use)} would sync on the GPU, too: `gapless.ops` has forms of a fixed size; "
            "otherwise keep this one copy"
        )
    if elsewhere := [name for name in use.on_cpu if name not in read.targets]:
        names = " and ".join(f"`{name}`" for name in elsewhere)
        moved = "; ".join(
            f"{name} = {name}.to({bracket(read.value or 'value')}.device)" for name in elsewhere
        )
        return (
            f"{read.name(use)} computes with {names}, on the CPU: have that on the GPU, too (`{moved}`, "
            f"once, before the loop, if it stays the same), and leave out the read (`{read.tensor}`)"
        )
    if factory := _made_on_cpu(code):
        return (
            f"make `{factory}` on the GPU (`device={bracket(read.value or 'value')}.device`)"
            f"{read.place(use)}, and leave out the read (`{read.tensor}`)"
        )
    tensor = f"the elements of `{read.tensor}`" if read.site.call.endswith("tolist") else f"`{read.tensor}`"
    return (
        f"leave out the read: {read.name(use)} computes with {tensor} itself (Python's and `math`'s "
        "functions on the way become torch's: `max(n, 1)` is `n.clamp(min=1)`)"
    )


def _made_on_cpu(code: Code | None) -> str:
    """Return the call that makes a tensor on the CPU in the line; "" if there is none, or several."""
    call = code.only_call(*_FACTORIES) if code is not None else None
    if code is None or call is None or keyword(call, "device") is not None:
        return ""
    return (
        code.text(call)
        if isinstance(call.func, ast.Attribute) and is_module(call.func.value, "torch")
        else ""
    )


def advise_sum(read: ReadValue, use: Use) -> str:
    whole = is_count(read.value)
    exact = read.tensor if whole else f"{read.tensor}.double()"
    changed = read.replace_in(use.text, exact)
    target = summed_in(use.text)
    summed = not_in_place(changed) if changed else exact
    total = f"`{target}`" if target else "the sum"
    exactly = "" if whole else ", in float64 as Python does"
    integers = "" if whole or _is_float(read.value) else "; whole numbers need no `.double()`"
    container, is_element, place = target.partition("[")
    if is_element and place[:1] not in "\"'":
        return (
            f"sum up on the GPU{exactly}{read.place(use)}: `{summed}`, and read all of `{container}` at "
            f"once: `torch.stack({container}).tolist()`{integers}"
        )
    rest = read.kinds - {"accumulator"}
    where = "once, behind the loop" if not rest else "only where it is shown" if rest <= _SHOWN else ""
    once = f", and read {total} {where}" if where else ""
    return f"sum up on the GPU{exactly}{read.place(use)}: `{summed}`{once}{integers}"


def _is_float(value: str) -> bool:
    """Whether the text says that the tensor holds no whole numbers."""
    return any(word in value for word in ("loss", "mean(", "norm", " / ", ".float("))


def advise_list(read: ReadValue, use: Use) -> str:
    changed = read.replace_in(use.text, read.kept(use))
    if read.site.mechanism == "d2h":
        return (
            f"keep the tensor (`{read.kept(use)}`){read.place(use)}, and copy all at once, behind the loop: "
            "`torch.cat(values).cpu()`, or `torch.stack` if each is one row"
        )
    shaped = ", if they have one shape" if read.site.call.endswith("tolist") else ""
    code = parse_line(use.text)
    call = code.only_call("append") if code is not None else None
    if changed and code is not None and call is not None:
        values = code.subject(call)
        if values and [code.text(argument) for argument in call.args] == [read.site.expression]:
            stacked = f"`torch.stack({values}).tolist()`"
            return f"keep the tensor: `{changed}`, and read all at once{shaped}: {stacked}"
    return (
        f"append the tensor{read.place(use)} (`{read.kept(use)}`), and read all at once{shaped}: "
        "`torch.stack(values).tolist()`"
    )


def advise_dict(read: ReadValue, use: Use) -> str:
    return (
        f"keep the tensor in the dict (`{read.kept(use)}`), and read all its values with one sync where they "
        "are used"
    )


def advise_report(read: ReadValue, use: Use) -> str:
    later = f"`gapless.ops.read_later(value={read.tensor})`"
    if read.kinds <= _SOFT:
        return (
            f"keep `{read.tensor}` on the GPU, and show it every N steps (`if step % 100 == 0:`), or the "
            f"value of an earlier step: {later}"
        )
    return f"a report{read.place(use)} can show the value of an earlier step: {later}"


def advise_count(read: ReadValue, use: Use) -> str:
    code = parse_whole(read.site.expression)
    node = expression_of(code)
    form, selecting = "mask.sum()", True
    if code is not None and isinstance(node, ast.Subscript):
        form = f"{code.primary(node.slice) or 'mask'}.sum()"
    elif code is not None and isinstance(node, ast.Call):
        form, selecting = _counting_form(code, node)
    if not selecting:
        return f"only the number is used: `{form}` counts on the GPU"
    return f"only the number is used: `{form}` counts on the GPU without selecting"


def _counting_form(code: Code, node: ast.Call) -> tuple[str, bool]:
    """Return what counts what `node` selects, and whether it selects by a mask."""
    plain = isinstance(node.func, ast.Attribute) and code.text(node.func.value) in ("torch", "th")
    subject = (code.text(node.args[0]) if node.args else "") if plain else code.subject(node)
    if "unique" in called_name(node):
        return f"gapless.ops.count_unique({subject or 'x'})", False
    if called_name(node) == "masked_select" and node.args:
        return f"{code.primary(node.args[-1]) or 'mask'}.sum()", True
    return f"torch.count_nonzero({subject or 'mask'})", False


def advise_numpy(read: ReadValue, use: Use) -> str:
    return f"compute {read.name(use)} in torch on the GPU, or copy everything that NumPy needs at once"


def advise_checkpoint(read: ReadValue, use: Use) -> str:
    return (
        f"{read.name(use)} needs it: copy into pinned memory with `non_blocking=True` and write in a thread, "
        "or save less often"
    )


def advise_timing(read: ReadValue, use: Use) -> str:
    return (
        "nothing uses the value, but a clock is read in this code: if it is read to wait, measure with "
        "`torch.cuda.Event(enable_timing=True)` and `elapsed_time`, or read the clock once for many steps; "
        "otherwise delete the read"
    )


def advise_deletion(read: ReadValue, use: Use) -> str:
    return "nothing uses the value: delete the read"


# -- not followed ------------------------------------------------------------------------------------


def advise_argument(read: ReadValue, use: Use) -> str:
    if ".numpy(" in use.text:
        return f"{read.name(use)} takes arrays: copy everything that it needs at once, or compute in torch"
    return (
        f"used by {read.name(use)}, which was not followed: pass the tensor (`{read.tensor}`) if it takes "
        "one; what only logs can get the value of an earlier step (`gapless.ops.read_later`)"
    )


def advise_kept(read: ReadValue, use: Use) -> str:
    where = "returned to callers" if use.kind == "returned" else "kept for readers"
    return (
        f"{where} that were not all followed{read.place(use)}: hand on `{read.kept(use)}`, and read it where "
        "a number is needed"
    )


def advise_unfollowed(read: ReadValue, use: Use) -> str:
    return (
        f"what {read.name(use)} does with it was not followed: keep `{read.tensor}` on the GPU up to where a "
        "number is needed"
    )
