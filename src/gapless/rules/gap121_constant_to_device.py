"""GAP121."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._code import Code, called_name, is_constant, keyword
from gapless.rules._places import advise_for_library, bare_operator, is_below, parse_waiting_line

_MAKERS = ("tensor", "as_tensor", "asarray", "new_tensor")


class ConstantToDevice(WaitRule):
    """A Python number or list turned into a GPU tensor: a small blocking copy from the CPU.

    ## What waits
    `torch.tensor(1.0, device="cuda")`, `torch.as_tensor([1, 2], device=...)` and `x.new_tensor(...)` build
    the tensor on the CPU and copy it over. The copy blocks, because the source is pageable memory. So does
    the copy that `torch.where(mask, torch.tensor(0.0), x)` makes of its CPU operand.

    ## Why it costs
    A constant of four bytes costs a whole sync, for everything queued before it, and code that creates one
    in each step often creates several.

    ## Example
    ```python
    for step in range(10):
        scale = torch.tensor(0.5, device=device)
        weights = torch.tensor([0.2, 0.8], device=device)
        out = x * scale
    ```

    ## Use instead
    ```python
    weights = torch.tensor([0.2, 0.8], device=device)  # once
    for step in range(10):
        scale = torch.full((), 0.5, device=device)
        out = x * scale
    ```
    A number is filled in by a kernel: `torch.full`, `zeros`, `ones`, `full_like` do not wait, and
    arithmetic with a tensor needs no second tensor at all: `x * 0.5`. Create a list once, before the loop;
    in a module it belongs in a buffer (`register_buffer`).

    ## When it is fine
    In set-up.
    """

    code = "GAP121"
    name = "constant-to-device"
    priority = 60
    advice = (
        "`torch.full((), value, device=...)` creates a number on the GPU without a copy; create a constant "
        "list once, before the loop or as a buffer of the module"
    )
    change = "create the constant once, on the GPU"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "h2d" and (
            site.detail in ("scalar", "list") or bare_operator(site) == "where"
        )

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        if bare_operator(site) == "where":
            return (_advise_where(code) if code is not None else "") or advise_for_library(site, _NUMBER)
        if any(
            is_below(site, library, file="core/module.py") for library in ("lightning", "pytorch_lightning")
        ):
            return (
                "`self.log` copies a Python number to the GPU: log a tensor created there (`torch.full((), "
                "value, device=self.device)`), or log the number less often"
            )
        return _advise_factory(site) or advise_for_library(
            site, _VALUES if _is_typed_constructor(site) else self.advice
        )

    def known_change(self, site: Site) -> str:
        changing = (
            _is_typed_constructor(site) and bare_operator(site) != "where" and not _advise_factory(site)
        )
        return "draw or compute the values on the GPU" if changing and site.deciding_frame is None else ""


_NUMBER = "pass a Python number to `torch.where`, not a CPU tensor: `torch.where(mask, 0.0, x)`"
_VALUES = (
    "draw or compute the values on the GPU (`torch.randn(shape, device=...)`), or send them from "
    "pinned memory with `non_blocking=True`"
)


def _is_typed_constructor(site: Site) -> bool:
    """Whether the tensor is created by ``torch.cuda.FloatTensor`` or similar, from arrays or lists."""
    return site.call.endswith("Tensor")


def _advise_factory(site: Site) -> str:
    """Return advice for ``torch.tensor(0.5, device=device)`` and similar, if the value is in the code."""
    code = parse_waiting_line(site)
    makers = (site.call.rpartition(".")[2], "Tensor") if _is_typed_constructor(site) else _MAKERS
    return _advise_creation(code, makers) if code is not None else ""


def _advise_where(code: Code) -> str:
    """Return advice for ``torch.where(mask, torch.tensor(0.0), x)``."""
    call = code.only_call("where")
    changes: list[tuple[ast.expr, str]] = [
        (value, code.text(value.args[0]))
        for value in (call.args if call is not None else ())
        if isinstance(value, ast.Call)
        and called_name(value) == "tensor"
        and len(value.args) == 1
        and not value.keywords
        if _is_number(value.args[0])
    ]
    changed = code.replace(*changes) if changes else ""
    return f"a Python number needs no copy: `{changed}`" if changed else ""


def _advise_creation(code: Code, makers: tuple[str, ...]) -> str:
    call = code.only_call(*makers)
    if call is None or len(call.args) != 1 or not isinstance(call.func, ast.Attribute):
        return ""
    value = call.args[0]
    text = code.text(value)
    if not text:
        return ""
    whole = code.text(call)
    if isinstance(value, (ast.List, ast.Tuple)) and is_constant(value):
        return (
            f"create `{whole}` once, before the loop, or keep it as a buffer of the module" if whole else ""
        )
    if isinstance(value, (ast.List, ast.Tuple, ast.ListComp)):
        return (
            f"create `{whole}` once if its values stay the same; copy changing values from pinned memory "
            "with `non_blocking=True`"
            if whole
            else ""
        )
    if not _is_number(value):
        return ""  # a name can hold a list as well as a number
    options = [f"{k.arg}={code.text(k.value)}" for k in call.keywords if k.arg in ("device", "dtype")]
    if call.func.attr == "new_tensor":
        return (
            f"`{code.subject(call)}.new_full((), {text})` fills it in on the GPU"
            if code.subject(call)
            else ""
        )
    if keyword(call, "device") is None or any(k.arg not in ("device", "dtype") for k in call.keywords):
        return ""
    return f"`torch.full((), {text}, {', '.join(options)})` fills it in on the GPU; or use the number itself"


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("len", "float", "int")
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
