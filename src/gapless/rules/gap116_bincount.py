"""GAP116."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._code import Code, add_option, is_module, keyword
from gapless.rules._places import advise_for_library, bare_names, parse_waiting_line

_NAMES = {
    "bincount",
    "histc",
    "histogram",
    "histogramdd",
    "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts",
}


class Bincount(WaitRule):
    """`bincount`, or `histc` without bounds: the range of the values is read on the CPU.

    ## What waits
    On CUDA, `torch.bincount` reads the smallest and the largest value on the CPU, to check the one and to
    size the result by the other: two syncs, even with `minlength`. `torch.histc` without `min` and `max`
    reads both bounds of the data.

    ## Why it costs
    Confusion matrices and class statistics are built from counts, so this tends to run in each step, for
    each metric.

    ## Example
    ```python
    counts = torch.bincount(y, minlength=classes)
    histogram = torch.histc(x, bins=10)
    ```

    ## Use instead
    ```python
    counts = torch.zeros(classes, dtype=torch.long, device=device).scatter_add_(0, y, torch.ones_like(y))
    histogram = torch.histc(x, bins=10, min=-4.0, max=4.0)
    ```
    The `scatter_add_` counts integers exactly, for values from 0 to `classes - 1`; a value outside stops
    the program with a device-side assertion instead of a longer result (`gapless.ops.bincount(y, size=n)`
    ignores it). `histc` with bounds ignores values outside them; `gapless.ops.histc` finds the bounds on
    the GPU.

    ## When it is fine
    In set-up (class weights of a data set), or on the CPU.
    """

    code = "GAP116"
    name = "bincount"
    advice = (
        "count with a fixed size: `gapless.ops.bincount(x, size=n)`; give `torch.histc` its `min` and `max`, "
        "or let `gapless.ops.histc(x, bins)` find them on the GPU"
    )
    change = "count with `gapless.ops.bincount(x, size=n)`"

    def matches(self, site: Site) -> bool:
        return not _NAMES.isdisjoint(bare_names(site))

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        return (
            _advise_bincount(code) or _advise_histc(code) if code is not None else ""
        ) or advise_for_library(site, self.advice)


def _advise_bincount(code: Code) -> str:
    call = code.only_call("bincount")
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    plain = is_module(call.func.value, "torch", "th")
    values = code.text(call.args[0]) if plain and call.args else "" if plain else code.subject(call)
    if not values.isidentifier() or len(call.args) > (1 if plain else 0):
        return ""
    length, weights = keyword(call, "minlength"), keyword(call, "weights")
    size = (code.text(length) if length is not None else "") or "n"
    if weights is not None:
        weights_name = code.text(weights)
        if not weights_name.isidentifier():
            return ""
        return (
            f"`gapless.ops.bincount({values}, {weights_name}, size={size})` computes the same "
            "sums at a fixed size"
        )
    return f"`gapless.ops.bincount({values}, size={size})` counts at a fixed size"


def _advise_histc(code: Code) -> str:
    call = code.only_call("histc")
    if call is None or len(call.args) > 2 or any(keyword(call, bound) for bound in ("min", "max")):
        return ""
    whole = add_option(code, call, "min=low, max=high")
    return f"give the bounds: `{whole}`, or let `gapless.ops.histc` find them" if whole else ""
