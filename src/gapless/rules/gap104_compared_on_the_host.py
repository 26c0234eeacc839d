"""GAP104."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._by_use import advise_by_use, is_only
from gapless.rules._code import Code, is_module
from gapless.rules._places import advise_for_library, bare_names, parse_waiting_line

_NAMES = {"equal", "allclose"}


class ComparedOnTheHost(WaitRule):
    """`torch.equal` or `torch.allclose`: the answer is a Python bool, so it must come to the CPU.

    ## What waits
    `torch.equal(a, b)` and `torch.allclose(a, b)` compare on the GPU and return a Python `bool`. The
    answer is copied back, and the CPU waits for it, even if nobody looks at it.

    ## Why it costs
    A comparison in a training loop is often a leftover check ("have the weights really changed?"). It costs
    a full read of both tensors on the GPU and one sync, in each step.

    ## Example
    ```python
    same = torch.equal(x, z)
    close = torch.allclose(x, z, atol=1e-6)
    ```

    ## Use instead
    ```python
    same = (x == z).all()
    close = torch.isclose(x, z, atol=1e-6).all()
    ```
    Both are bool tensors on the GPU; `torch.where` and `&` work with them there. `torch.equal` also
    accepts different shapes and answers `False`: compare `a.shape == b.shape` first; shapes are known on
    the CPU.

    ## When it is fine
    In tests, in set-up, or every N steps.
    """

    code = "GAP104"
    name = "compared-on-the-host"
    advice = "`(a == b).all()` or `torch.isclose(a, b).all()` keeps the answer on the GPU"
    change = "compare on the GPU: `(a == b).all()`"
    reach = "function"

    def matches(self, site: Site) -> bool:
        return not _NAMES.isdisjoint(bare_names(site))

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        own = (_advise_device_comparison(code) if code is not None else "") or advise_for_library(
            site, self.advice
        )
        if is_only(site, "unused"):
            return advise_by_use(site, code)
        later = advise_by_use(site, code) if is_only(site, "check", "stop", "show") else ""
        return f"{own}; {later}" if later else own


def _advise_device_comparison(code: Code) -> str:
    call = code.only_call("equal", "allclose")
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    bound = not is_module(call.func.value, "torch", "th")
    tensors = [call.func.value, *call.args[:1]] if bound else call.args[:2]
    rest = call.args[1:] if bound else call.args[2:]
    if len(tensors) != 2:
        return ""
    left, right = (code.text(tensor) for tensor in tensors)
    first, other = (code.operand(tensor) for tensor in tensors)
    if not left or not right:
        return ""
    if call.func.attr == "equal":
        return f"`({first} == {other}).all()` keeps the answer on the GPU (for tensors of one shape)"
    options = [code.text(value) for value in rest] + [
        f"{k.arg}={code.text(k.value)}" for k in call.keywords if k.arg
    ]
    return f"`torch.isclose({', '.join([left, right, *options])}).all()` keeps the answer on the GPU"
