"""GAP103."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._by_use import is_only
from gapless.rules._code import Code
from gapless.rules._places import bare_names, parse_waiting_line

_NAMES = {"__repr__", "__str__", "__format__"}


class TensorPrinted(WaitRule):
    """Printing or formatting a GPU tensor: its values must be on the CPU to become text.

    ## What waits
    `print(tensor)`, an f-string or `str.format` with a GPU tensor, `str(tensor)`, `repr(tensor)` and a
    logging call whose message takes one copy the values to the CPU. So does a progress bar that shows the
    loss.

    ## Why it costs
    The text cannot be created before the value has been computed, so the CPU waits for all work in the
    queue, and the GPU then idles while the CPU formats, writes to the terminal, and launches the next
    kernels. Logging calls format lazily: below the level of the logger, nothing is formatted and nothing
    waits.

    ## Example
    ```python
    for step in range(100):
        loss = train_step()
        print(f"step {step}: loss {loss:.4f}")
    ```

    ## Use instead
    ```python
    losses = []
    for step in range(100):
        losses.append(train_step().detach())
        if step % 50 == 49:
            average = sum(torch.stack(losses).tolist()) / len(losses)  # one sync in 50 steps
            print(f"step {step}: loss {average:.4f}")
            losses.clear()
    ```
    To print without any sync, start a copy with `gapless.ops.read_later(loss=loss)` and print its
    `result()["loss"]` a few steps later, when `ready()` reports that it has arrived.

    ## When it is fine
    Every N steps, in set-up, while debugging, or in the message of an error.
    """

    code = "GAP103"
    name = "tensor-printed"
    advice = (
        "show a value from a few steps ago, copied by `gapless.ops.read_later` without waiting; what is only "
        "printed can be printed every N steps"
    )
    change = "print every N steps"
    reach = "function"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "read" and not _NAMES.isdisjoint(bare_names(site))

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        shown = _formatted_value(code) if code is not None else ""
        if not shown or code is None:
            return self.advice
        if not (is_only(site, "show") if site.uses else code.only_call("print") is not None):
            return (
                f"making a text of `{shown}` reads a GPU tensor: take the value of an earlier step "
                f"(`gapless.ops.read_later(value={shown})`)"
            )
        return f"showing `{shown}` reads a GPU tensor: do it only every N steps (`if step % 100 == 0:`)"


def _formatted_value(code: Code) -> str:
    """Return the text of the value that is formatted; "" if there are several."""
    values = [node.value for node in code.nodes() if isinstance(node, ast.FormattedValue)]
    for call in code.calls("print", "str", "repr"):
        values += [
            value for value in call.args if not isinstance(value, (ast.Constant, ast.JoinedStr, ast.Starred))
        ]
    return code.text(values[0]) if len(values) == 1 else ""
