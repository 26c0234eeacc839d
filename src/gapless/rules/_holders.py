"""What to write instead where a name keeps tensors of step after step: the program's own line, mended."""

from __future__ import annotations

import ast

from gapless.model.memory import Holder
from gapless.model.wording import binary_size

_LONG = 80
"""Characters of a line that is quoted."""
_CACHE = "_lru_cache_wrapper"
_MOSTLY = 0.5
"""The share of the bytes that must be in graphs for detaching to be the whole remedy."""


def description(holder: Holder) -> str:
    """``the list `self.bank` ``."""
    words = {"Tensor": "tensor", _CACHE: "cache of", "ndarray": "array"}
    also = f" and {holder.alike:,} more like it" if holder.alike else ""
    return f"the {words.get(holder.kind, holder.kind)} `{holder.name}`{also}"


def in_graphs(holder: Holder) -> bool:
    """Whether an autograd graph keeps most of it."""
    return holder.in_graphs > _MOSTLY * holder.bytes


def change(holder: Holder, evaluates: bool = False) -> str:
    """What to do, in a few words; `evaluates` says that the line that adds calls a model in evaluation."""
    if evaluates and in_graphs(holder):
        return "`torch.no_grad()` around the forward pass"
    line = _mended(holder)
    if holder.kind == _CACHE:
        return f"bound the cache: `lru_cache(maxsize=…)` on `{holder.name}`"
    if in_graphs(holder):
        if line:
            return f"`{line}`"
        name = holder.name
        return (
            f"`{name} = {name}.detach()` in each step"
            if holder.kind == "Tensor"
            else f"detach what `{name}` keeps"
        )
    name = _all(holder)
    return f"`{line}`, and bound {name}" if line else f"bound {name}, or clear {_it(holder)}"


def remedy(holder: Holder, evaluates: bool = False) -> str:
    """What to do, in a sentence; `evaluates` says that the line that adds calls a model in evaluation."""
    if evaluates and in_graphs(holder):
        return (
            "run the forward pass under `torch.no_grad()`, or `torch.inference_mode()`: autograd graphs keep "
            "its activations, and no backward pass uses them"
        )
    line = _mended(holder)
    if holder.kind == _CACHE:
        return (
            f"give the cache of `{holder.name}` a bound (`maxsize=…`), or return tensors on the CPU: it "
            "keeps every result"
        )
    if in_graphs(holder):
        how = f"write `{line}`" if line else f"detach what `{holder.name}` keeps (`x.detach()`)"
        return (
            f"{how}: its autograd graph keeps the activations of every step, and no backward pass through "
            "them follows"
        )
    detach = f"write `{line}`, and " if line else ""
    return (
        f"{detach}bound {_all(holder)} (`deque(maxlen=…)`, or clear {_it(holder)} after use), or move "
        f"{_it(holder)} to the CPU now and then, in one copy"
    )


def _all(holder: Holder) -> str:
    return f"`{holder.name}`" + (f" and the {holder.alike:,} like it" if holder.alike else "")


def _it(holder: Holder) -> str:
    return "them" if holder.alike else "it"


def full(holder: Holder) -> str:
    """What a bounded container takes when it is full, in a sentence."""
    return (
        f"`{holder.name}` holds at most {holder.most:,} entries: {binary_size(holder.in_the_end)} more until "
        "it is full"
    )


def _mended(holder: Holder) -> str:
    """The line that adds, with what it adds detached; "" where it is not of a simple form."""
    if holder.line is None or not (in_graphs(holder) or holder.attached):
        return ""
    try:
        tree = ast.parse(holder.line.code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and holder.kind == "Tensor":
            return _short(f"{ast.unparse(node.target)} += {_detached(node.value)}")
        if isinstance(node, ast.Call) and _adds(node, holder):
            before = "".join(f"{ast.unparse(one)}, " for one in node.args[:-1])
            return _short(f"{ast.unparse(node.func)}({before}{_detached(node.args[-1])})")
        if isinstance(node, ast.Assign) and _is_entry(node, holder):
            return _short(f"{ast.unparse(node.targets[0])} = {_detached(node.value)}")
    return ""


def _detached(value: ast.expr) -> str:
    text = ast.unparse(value)
    simple = isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    return f"{text}.detach()" if simple else f"({text}).detach()"


def _adds(call: ast.Call, holder: Holder) -> bool:
    last = holder.name.replace("[", ".[").rpartition(".")[2]
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in ("append", "appendleft", "add")
        and bool(call.args)
        and not call.keywords
        and (last in ast.unparse(call.func.value).replace("'", '"'))
    )


def _is_entry(node: ast.Assign, holder: Holder) -> bool:
    return isinstance(node.targets[0], ast.Subscript) and holder.kind in (
        "dict",
        "defaultdict",
        "OrderedDict",
        "ndarray",
    )


def _short(text: str) -> str:
    return text if len(text) <= _LONG else ""
