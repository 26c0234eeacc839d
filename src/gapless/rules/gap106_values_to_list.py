"""GAP106."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._by_use import advise_by_use, change_by_use
from gapless.rules._places import bare_names, parse_waiting_line

_NAMES = {"tolist", "numpy", "__array__", "__dlpack__"}


class ValuesToList(WaitRule):
    """`.tolist()` on a GPU tensor: all its values are copied to the CPU, which waits for them.

    ## What waits
    `tensor.tolist()` copies the tensor to the CPU in one blocking copy and converts it to Python
    numbers. Passing the list on to `split`, `range` or a loop hides that the values came from the GPU.

    ## Why it costs
    The copy runs after everything launched before. For a large tensor the copy itself costs as well,
    because the destination is not pinned, and so does creating a Python object for each value.

    ## Example
    ```python
    sizes = counts.tolist()
    for row, size in enumerate(sizes):
        x[row, size:] = 0.0
    ```

    ## Use instead
    ```python
    columns = torch.arange(x.shape[1], device=x.device)
    x = torch.where(columns < counts.unsqueeze(1), x, 0.0)
    ```
    A loop over values is nearly always a comparison with `torch.arange`, a `gather` or a `scatter`. What is
    only logged can be collected with `torch.stack` and read once every N steps: one `tolist()` of a stack
    is one sync.

    ## When it is fine
    Once every N steps, and then as a single list of everything. It is the right way to read many values at
    once."""

    code = "GAP106"
    name = "values-to-list"
    advice = (
        "compute with the tensor itself (compare with `torch.arange`, `gather`, `scatter`), or read "
        "everything at once every N steps"
    )
    change = "compute on the GPU, or read all at once every N steps"
    leaves = 1
    reach = "function"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "read" and not _NAMES.isdisjoint(bare_names(site))

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        if by_use := advise_by_use(site, code):
            return by_use
        call = code.only_call("tolist") if code is not None else None
        if code is None or call is None or not isinstance(call.func, ast.Attribute):
            return self.advice
        subject = code.subject(call)
        appended = code.only_call("append", "extend")
        if subject and appended is not None and appended.args == [call]:
            detached = f"{subject}.detach()" + (".clone()" if code.kept(call.func.value) != subject else "")
            kept = code.replace((appended, f"{code.subject(appended)}.append({detached})"))
            if kept:
                return f"keep the tensor: `{kept}`, and read all of them at once, every N steps"
        if not subject:
            return self.advice
        return f"compute with `{subject}` on the GPU; what is only logged, read every N steps"

    def known_change(self, site: Site) -> str:
        return change_by_use(site)
