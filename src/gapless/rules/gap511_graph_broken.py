"""GAP511."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gapless.model import CompiledRule, Hit
from gapless.model.compiled import Compiled, GraphBreak
from gapless.model.wording import count
from gapless.rules._compiled import compiled_site, describe_compiled, describe_place

_INTENDED_BREAKS = ("torch._dynamo.graph_break()", "torch.compiler.disable", "Skip inlining")
"""The compiler's names for breaks that the user requested."""
_MAX_REASON_CHARS = 220
"""Longer reasons of the compiler are cut: they go on with hints."""
_FILE = re.compile(r" in file `[^`]*`")
_READ_AND_PRINTED = (
    "keep the value a tensor: return it, and read and print it after the compiled call",
    "read and print after the compiled call",
)
_PRINTING = ("print", "logging", "warnings")
_REMEDIES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("Data-dependent branching", "data-dependent expression", "Data-dependent assertion"),
        "choose on the GPU: `torch.where(condition, a, b)`; `torch.cond(condition, f, g, (x,))` for long "
        "branches avoids the break but not the sync; move decisions that must be made in Python outside "
        "the compiled function",
        "`torch.where` instead of the branch",
    ),
    (
        ("Tensor.item", "Data dependent operator", "capture_scalar_outputs"),
        "keep the value a tensor and read it after the compiled call; if the graph needs the number "
        "itself, `torch._dynamo.config.capture_scalar_outputs = True` avoids the break but not the sync",
        "keep the value a tensor inside the compiled code",
    ),
    (
        ("Dynamic shape operator", "nonzero", "Boolean mask"),
        "give the result a fixed size (`torch.where`, `gapless.ops`), or set "
        "`torch._dynamo.config.capture_dynamic_output_shape_ops = True`",
        "give the result a fixed size",
    ),
    (
        _PRINTING,
        "print and log after the compiled call; "
        "`torch._dynamo.config.reorderable_logging_functions.add(print)` moves prints after the graph",
        "print and log outside the compiled code",
    ),
    (
        ("marked that the function", "marked as skipped"),
        "call it before or after the compiled function: the compiler does not trace into it",
        "call it outside the compiled function",
    ),
    (
        ("Tensor.backward", "autograd.grad"),
        "compile the model or the loss, and call `backward()` outside; compiled autograd "
        "(`torch._dynamo.config.compiled_autograd = True`) includes it",
        "call `backward()` outside the compiled function",
    ),
)


class GraphBroken(CompiledRule):
    """The compiler ends a graph in the middle of compiled code, and Python runs in between.

    ## What waits
    Often nothing; sometimes the CPU, if the break is a value that is read from the GPU. `torch.compile`
    puts what it can trace into graphs. When it meets something else (a `print`, a branch on a value, an
    unknown call), it ends the graph, lets Python run, and starts another graph afterwards.

    ## Why it costs
    Kernels are fused only within a graph, so each break adds launches and memory traffic. CUDA graphs also
    end there, and each graph has guards that are checked in every call. What was meant to be one launch
    becomes several, with Python in between.

    ## Example
    ```python
    @torch.compile
    def scaled(x):
        x = x.relu()
        print("mean", x.mean().item())
        return x * 2


    for step in range(3):
        scaled(torch.rand(8, device="cuda"))
    ```

    ## Use instead
    ```python
    @torch.compile
    def scaled(x):
        x = x.relu()
        return x * 2, x.mean()


    for step in range(3):
        y, mean = scaled(torch.rand(8, device="cuda"))
    print("mean", mean.item())
    ```
    `torch.compile(..., fullgraph=True)` turns a break into an error, so that new breaks are noticed.

    ## When it is fine
    Where the code between two graphs is rare or long anyway. An intentional break
    (`torch._dynamo.graph_break()`, `torch.compiler.disable`) and one within PyTorch itself are not reported.
    """

    code = "GAP511"
    name = "graph-broken"
    advice = (
        "move what the compiler cannot trace out of the compiled function, and compile with "
        "`fullgraph=True` so that new breaks raise an error"
    )
    change = "move what breaks the graph out of the compiled code"

    def of_compiled(self, compiled: Compiled) -> Iterable[Hit]:
        lines: dict[object, list[GraphBreak]] = {}
        for graph_break in compiled.breaks:
            meant = any(word in graph_break.kind + graph_break.reason for word in _INTENDED_BREAKS)
            if graph_break.raises or (
                graph_break.is_users and not meant
            ):  # what raises ends the script, wherever it is
                lines.setdefault((graph_break.line or graph_break.stack, graph_break.raises), []).append(
                    graph_break
                )
        for breaks in lines.values():  # one line may break for several reasons: `print(x.item())`
            yield self._hit(compiled, breaks)

    def _hit(self, compiled: Compiled, breaks: list[GraphBreak]) -> Hit:
        graph_break, times = breaks[0], sum(other.times for other in breaks)
        where = describe_place(graph_break.line)
        if graph_break.raises:
            first = (
                f"{describe_compiled(compiled)} does not compile: `fullgraph=True` allows no "
                "graph break, but "
                f"{where} causes one"
            )
        else:
            first = f"{where} ends a graph of {describe_compiled(compiled)}, {count(times, 'time')}"
        graphs = f"{count(compiled.graphs, 'graph')} instead of one" if compiled.graphs > 1 else ""
        reasons = dict.fromkeys(_FILE.sub("", other.reason or other.kind) for other in breaks)
        remedy, change = (
            _READ_AND_PRINTED if any(map(_is_printing, breaks[1:])) else self._instead(graph_break)
        )
        evidence = (
            first,
            *(f"the compiler says: {reason[:_MAX_REASON_CHARS].rstrip('.')}" for reason in reasons),
            graphs,
        )
        return Hit(
            evidence=tuple(text for text in evidence if text),
            remedy=remedy,
            change=change,
            site=compiled_site(graph_break.stack),
            calls=times,
        )

    def _instead(self, graph_break: GraphBreak) -> tuple[str, str]:
        text = f"{graph_break.kind} {graph_break.reason}"
        for words, remedy, change in _REMEDIES:
            if any(word in text for word in words):
                return remedy, change
        hint = next((hint.rstrip(".") for hint in graph_break.hints if "report an issue" not in hint), "")
        return (f"{self.advice}; PyTorch's own advice: {hint}" if hint else self.advice), self.change


def _is_printing(graph_break: GraphBreak) -> bool:
    return any(word in graph_break.kind + graph_break.reason for word in _PRINTING)
