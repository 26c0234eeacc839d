"""GAP102."""

from __future__ import annotations

import ast
import builtins

from gapless.model import Site, WaitRule
from gapless.rules._by_use import REMEDIES, advise_by_use, change_by_use
from gapless.rules._code import Code, called_name
from gapless.rules._places import bare_names, parse_waiting_line

_CALLS = {"__bool__", "is_nonzero"}
_PICKS = {"max": "torch.maximum", "min": "torch.minimum"}
_FINITE = ("isnan", "isinf", "isfinite")

_LATER = "looked at a step later: `gapless.ops.read_later(bad=bad)`"
"""What happens to a flag that no step waits for."""


class TensorAsCondition(WaitRule):
    """`if tensor:`, `while`, `assert`, `not`, `and`, `max(a, b)`: Python needs a bool that is on the GPU.

    ## What waits
    Python asks a tensor for its truth value in every condition: `if`, `while`, `assert`, `not`, `and`,
    `or`, a conditional expression, and inside `any`, `all`, `max`, `min` and `sorted` over tensors, or
    `tensor in [a, b]`. For a GPU tensor, each of these copies one bool to the CPU and waits for it.

    ## Why it costs
    The CPU cannot launch either branch before it knows which one it is. `max`, `sorted` and `in` over a
    list ask once per comparison: a list of n tensors waits n times.

    ## Example
    ```python
    if torch.isnan(loss).any():
        loss = torch.zeros_like(loss)
    best = max(loss, target_loss)
    ```

    ## Use instead
    ```python
    loss = torch.where(torch.isnan(loss), 0.0, loss)
    best = torch.maximum(loss, target_loss)
    ```
    Compute both outcomes and choose with `torch.where`; `torch.maximum`, `torch.minimum`, `clamp`,
    `logical_and`, `logical_or` and `logical_not` stay on the GPU. A check that should only warn can be
    collected in a flag on the GPU (`bad |= torch.isnan(loss)`) that is looked at a step later
    (`gapless.ops.read_later(bad=bad)`).
    `gapless.ops.step_if(optimizer, condition)` skips an optimizer step on the GPU.

    ## When it is fine
    Where the branch saves more work than the sync costs, or where it runs rarely: test `step % n == 0`
    first, so that Python does not evaluate the tensor in the other steps."""

    code = "GAP102"
    name = "tensor-as-condition"
    advice = (
        "compute both outcomes and choose on the GPU: `torch.where(condition, a, b)`; a check that only "
        "warns can look at an earlier step's answer (`gapless.ops.read_later`); "
        "`gapless.ops.step_if(optimizer, condition)` skips a step"
    )
    change = "choose on the GPU with `torch.where`"
    reach = "function"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "read" and not _CALLS.isdisjoint(bare_names(site))

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        own = _advise_own(code, site) if code is not None else ""
        return own or advise_by_use(site, code) or self.advice

    def known_change(self, site: Site) -> str:
        code = parse_waiting_line(site)
        if site.uses and (code is None or not _advise_min_max(code)):
            return change_by_use(site)
        checks = code is not None and not _advise_min_max(code) and _advise_check(code)
        return REMEDIES["finite"].change if checks else ""


def _advise_own(code: Code, site: Site) -> str:
    """Return advice with the line's own names, where the line shows what the condition is for."""
    kinds = {use.kind for use in site.uses}
    if picked := _advise_min_max(code):
        return picked
    if not kinds:
        return _advise_check(code) or _advise_branch(code)
    if kinds <= {"finite", "check"}:
        return _advise_check(code)
    return _advise_branch(code) if kinds == {"condition"} else ""


def _is_number(node: ast.expr) -> bool:
    """Whether `node` is a literal number, with or without a sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _advise_min_max(code: Code) -> str:
    """Return advice for Python's own `max` and `min`."""
    call = code.only_call(*_PICKS)
    if call is None or not isinstance(call.func, ast.Name) or call.keywords:
        return ""
    name = call.func.id
    texts = [code.text(value) for value in call.args]
    if not all(texts) or any(isinstance(value, ast.Starred) for value in call.args):
        return ""
    if len(texts) == 1:
        if isinstance(call.args[0], ast.GeneratorExp):
            items = texts[0][1:-1]  # Python counts the brackets of the call as its own
            return f"`torch.stack([{items}]).{name}()` for tensors of one shape"
        own = code.primary(call.args[0])
        return f"`{own}.{name}()` for a tensor, `torch.stack({texts[0]}).{name}()` for a list of tensors"
    if len(texts) != 2:
        return ""
    numbers = [_is_number(value) for value in call.args]
    if any(numbers):
        tensor, bound = texts if numbers[1] else reversed(texts)
        side = "min" if name == "max" else "max"
        return f"`torch.clamp({tensor}, {side}={bound})` does the same on the GPU"
    return f"`{_PICKS[name]}({texts[0]}, {texts[1]})` does the same on the GPU, where both are"


def _advise_check(code: Code) -> str:
    """Return advice for asserts and for checks that values are finite."""
    if isinstance(code.statement, ast.Assert):
        return (
            "assert what the CPU knows (shapes, dtypes); a check of values belongs behind a debug switch, or "
            f"in a flag on the GPU (`bad |= ~condition`), which is {_LATER}"
        )
    call = code.only_call(*_FINITE)
    checked = code.text(call) if call is not None else ""
    if call is None or not checked:
        return ""
    flag = f"~{checked}.all()" if called_name(call) == "isfinite" else f"{checked}.any()"
    if isinstance(code.statement, ast.If):
        good = f"{checked}.all()" if called_name(call) == "isfinite" else f"~{checked}.any()"
        return (
            f"to skip the step, `gapless.ops.step_if(optimizer, {good})`; to report it, collect the answer "
            f"on the GPU (`bad |= {flag}`), which is {_LATER}"
        )
    return (
        f"collect the answer on the GPU (`bad |= {flag}`, with `bad` a bool tensor there), which is {_LATER}"
    )


def _can_be_tensor(test: ast.expr) -> bool:
    """Whether `test` as a whole can be the tensor whose truth is read."""
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1 and not isinstance(test.ops[0], (ast.In, ast.NotIn, ast.Is, ast.IsNot))
    if isinstance(test, ast.Call):
        return not (isinstance(test.func, ast.Name) and hasattr(builtins, test.func.id))
    return isinstance(test, (ast.Name, ast.Attribute, ast.Subscript))


def _advise_branch(code: Code) -> str:
    """Return advice for `if` and conditional expressions, with the text of the condition."""
    choices = [node for node in code.nodes() if isinstance(node, ast.IfExp)]
    if isinstance(code.statement, ast.If) and not choices:
        condition = code.text(code.statement.test)
        if not condition or not _can_be_tensor(code.statement.test):
            return ""
        return (
            f"compute both outcomes and choose on the GPU: `torch.where({condition}, a, b)`; a branch that "
            f"only warns or logs can take an earlier step's answer: `gapless.ops.read_later(bad={condition})`"
        )
    if len(choices) != 1 or isinstance(code.statement, ast.If):
        return ""
    parts = (choices[0].test, choices[0].body, choices[0].orelse)
    texts = [code.text(part) for part in parts]
    values_fit = all(
        _is_number(part) or not isinstance(part, (ast.Constant, ast.JoinedStr)) for part in parts[1:]
    )
    if all(texts) and values_fit and _can_be_tensor(choices[0].test):
        return f"choose on the GPU: `torch.where({', '.join(texts)})`, where both are tensors or numbers"
    return ""
