"""GAP101."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from gapless.model import Site, WaitRule
from gapless.rules._by_use import advise_by_use, change_by_use, is_only
from gapless.rules._code import Code, not_in_place
from gapless.rules._places import bare_names, parse_waiting_line
from gapless.rules._read_value import COUNTERS, read_value

_CALLS = {"item", "__float__", "__int__", "__complex__", "__round__", "__trunc__", "__floor__", "__ceil__"}
_READERS = ("item", "float", "int")
_READER_NAMES = {"item": ("item",), "__float__": ("float",), "__int__": ("int",)}
"""Names of readers in the code: ``float(size)`` beside ``loss.item()`` need not read a tensor."""
_MAX_STACK_CHARS = 100
"""Longer calls are shortened: advice must stay readable."""
_TENSOR_FACTORIES = ("tensor", "as_tensor", "asarray", "new_tensor", "Tensor", "FloatTensor", "LongTensor")


class ItemRead(WaitRule):
    """`.item()`, `float(t)` or `int(t)`: one number is copied to the CPU, which waits for it.

    ## What waits
    `.item()`, `float(tensor)`, `int(tensor)` and functions that call them (`math.sqrt(tensor)`, `round`)
    copy one number from the GPU into a Python number; `torch.tensor([loss, accuracy])` does so for each GPU
    tensor in the list. The copy is queued after everything launched before it, so the CPU waits for all of
    that.

    ## Why it costs
    The usual place is the loss, read in each step for a running mean. The CPU then stops until everything
    up to the loss is done (the whole step, if the loss is read at the end), and the GPU idles while the
    CPU prepares and launches the next work. With small kernels, where the CPU is barely faster than the
    GPU, that gap is a large part of the step.

    ## Example
    ```python
    running = 0.0
    for step in range(100):
        loss = train_step()
        running += loss.item()
        if step % 50 == 49:
            print(running / 50)
            running = 0.0
    ```

    ## Use instead
    ```python
    running = torch.zeros((), device=device, dtype=torch.float64)
    for step in range(100):
        loss = train_step()
        running = running + loss.detach().double()
        if step % 50 == 49:
            average = (running / 50).tolist()  # one sync in 50 steps
            running = torch.zeros_like(running)
    ```
    `detach()` matters: without it the sum keeps the graph of every step alive. So does float64, in which
    Python adds: a sum of bfloat16 losses in their own precision stops growing at 1,024. Several values are
    read with one sync when they are stacked first: `torch.stack([loss, accuracy]).tolist()`.
    `gapless.ops.LogBuffer` keeps the values of every step, and reads them without any sync: they arrive a few
    steps later.

    ## When it is fine
    Once every N steps, once an epoch, or where the CPU really needs the value for a decision and the
    decision is rare."""

    code = "GAP101"
    name = "item-read"
    advice = (
        "keep the value on the GPU (`.detach()`); what is summed up, sum there (`.double()`) and read where "
        "it is shown; `gapless.ops.LogBuffer` collects values from each step and delivers them without a "
        "sync"
    )
    change = "read the value at the end, not in each step"
    leaves = 1
    reach = "function"

    def matches(self, site: Site) -> bool:
        if site.mechanism != "read":
            return False
        return not (_CALLS | {*_TENSOR_FACTORIES, "new"}).isdisjoint(bare_names(site))

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        if by_use := advise_by_use(site, code):
            stacked = _advise_stack(code) if code is not None else ""
            return stacked if stacked and is_only(site, "tensor") else by_use
        if code is None:
            return self.advice
        spelled = _READER_NAMES.get(site.call.rpartition(".")[2], _READERS)
        reads = [(call, subject) for call in code.calls(*spelled) if (subject := _read_tensor(code, call))]
        if len(reads) == 1:
            return _advise_single_read(code, *reads[0]) or self.advice
        if not reads and (stacked := _advise_stack(code)):
            return stacked
        names = list(dict.fromkeys(f"`{subject}`" for _, subject in reads))
        if 2 <= len(names) <= 4:
            together = f"{', '.join(names[:-1])} and {names[-1]}"
            return f"keep {together} on the GPU (`.detach()`), and read them together, with one sync"
        return self.advice

    def known_change(self, site: Site) -> str:
        return change_by_use(site)

    def remedy_together(self, sites: Sequence[Site]) -> str:
        """Return how to read what `sites` read with one sync."""
        values = list(dict.fromkeys(read_value(site) for site in sites))
        if (
            not all(values)
            or len(values) < 2
            or any(use.kind == "element" for site in sites for use in site.uses)
        ):
            return ""
        stacked = f"torch.stack([{', '.join(values)}]).tolist()"
        if len(stacked) > _MAX_STACK_CHARS:
            stacked = f"torch.stack([{values[0]}, …]).tolist()"
        shown = all(is_only(site, "show") for site in sites)
        number = "both" if len(values) == 2 else f"all {len(values)}"
        return f"read {number} with one sync: `{stacked}`{', every N steps' if shown else ''}"


def _advise_stack(code: Code) -> str:
    """Return advice for ``torch.tensor([loss, accuracy])``, which reads the elements one by one."""
    call = code.only_call(*_TENSOR_FACTORIES)
    if call is None or len(call.args) != 1 or code.calls(*_READERS):
        return ""
    values = call.args[0]
    held = values.elts if isinstance(values, (ast.List, ast.Tuple)) else []
    if not isinstance(values, (ast.List, ast.Tuple, ast.ListComp, ast.Name)):
        return ""
    if any(isinstance(element, (ast.Constant, ast.List, ast.Tuple, ast.Starred)) for element in held):
        return ""
    return f"`torch.stack({code.text(values)})` builds the tensor on the GPU without reading its elements"


def _read_tensor(code: Code, call: ast.Call) -> str:
    """Return the tensor that `call` reads; "" if it has no name."""
    if isinstance(call.func, ast.Attribute):
        return code.subject(call) if call.func.attr == "item" and not call.args else ""
    if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Constant):
        return ""
    inner = call.args[0]
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "item":
        return ""  # float(x.item()): the inner call names it
    return code.primary(inner)


def _counts(code: Code, call: ast.Call) -> bool:
    """Whether what is read is a number of hits, a whole number that needs no float64."""
    return any(
        isinstance(node, (ast.Compare, ast.Name)) and (isinstance(node, ast.Compare) or node.id in COUNTERS)
        for node in (*ast.walk(call), *ast.walk(getattr(code.statement, "target", call)))
    )


def _is_added_to(statement: ast.AugAssign, call: ast.Call) -> bool:
    """Whether the number read by `call` is added, alone or with other terms."""
    parts: list[ast.expr] = [statement.value]
    while parts:
        part = parts.pop()
        if part is call:
            return isinstance(statement.op, ast.Add)
        if isinstance(part, ast.BinOp):
            parts += [part.left, part.right]
        elif isinstance(part, ast.UnaryOp):
            parts.append(part.operand)
    return False


def _advise_single_read(code: Code, call: ast.Call, subject: str) -> str:
    """Return advice for a line with a single read of a tensor."""
    kept = subject if subject.endswith(".detach()") else f"{subject}.detach()"
    changed = code.replace((call, kept))
    statement = code.statement
    if changed and isinstance(statement, ast.AugAssign) and _is_added_to(statement, call):
        target = code.text(statement.target)
        exact = code.replace((call, f"{kept}.double()"))
        if not exact or _counts(code, call):
            return (
                f"sum up on the GPU: `{not_in_place(changed)}`, and read `{target}` where a number is needed"
            )
        return (
            f"sum up on the GPU, in float64 as Python does: `{not_in_place(exact)}`, and read "
            f"`{target}` where a number is needed"
        )
    appended = code.only_call("append")
    if changed and appended is not None and appended.args == [call]:
        values = code.subject(appended)
        if isinstance(call.func, ast.Attribute) and code.kept(call.func.value).endswith(".clone()"):
            changed = code.replace((call, f"{kept}.clone()"))
        return f"keep the tensor: `{changed}`, and read all at once: `torch.stack({values}).tolist()`"
    if changed and isinstance(statement, ast.Assign) and statement.value is call:
        return f"keep it on the GPU: `{changed}`, and read it only where the CPU needs a number"
    if changed and isinstance(statement, ast.Return):
        return (
            f"`{changed}` alone moves the read to the callers: return the tensor where they can keep it on "
            "the GPU, and let them read it where they need a number"
        )
    detached = f" (`{kept}`)" if subject.isidentifier() else ""
    if any(call in outer.args for outer in code.calls("update", "add", "log")):
        return (
            f"pass `{kept}` on, and read it where it is shown: as a number there "
            "(`.item()`), or the text is `tensor(…)`"
        )
    return f"keep `{subject}` on the GPU{detached}, and read it only where the CPU needs a number"
