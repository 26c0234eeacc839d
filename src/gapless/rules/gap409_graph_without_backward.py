"""GAP409."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule
from gapless.model.memory_report import GraphCost, MemoryReport
from gapless.model.wording import binary_size
from gapless.rules import _memory as memory_rules


class GraphWithoutBackward(MemoryRule):
    """A forward pass builds a graph that no backward pass goes through: `torch.no_grad()` is missing.

    ## What waits
    Nothing. But the graph keeps every activation of the forward pass until its result is dropped.

    ## Why it costs
    Under `torch.no_grad()` an activation ends as soon as the next layer has used it. With a graph all of them
    stay, of every batch whose result is kept: evaluation may then need more memory than training.

    ## Example
    ```python
    model.eval()
    predictions = []
    for inputs in loader:
        predictions.append(model(inputs))
    ```

    ## Use instead
    ```python
    model.eval()
    predictions = []
    with torch.no_grad():
        for inputs in loader:
            predictions.append(model(inputs))
    ```
    `model.eval()` changes dropout and batch normalization; it does not switch off autograd.
    `torch.inference_mode()` saves a little more, if nothing of the results is used in training.

    ## When it is fine
    Where gradients are wanted after all, in a backward pass that this run did not reach."""

    code = "GAP409"
    name = "graph-without-backward"
    advice = "run the forward pass under `torch.no_grad()`, or `torch.inference_mode()`"
    change = "`torch.no_grad()` around the forward pass"

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        grown = {line for holder in memory.holders for line in holder.lines}
        for graph in memory.unused_graphs:
            if graph.bytes - graph.without < LEAST or (
                graph.line in grown and memory_rules.is_leaking(memory)
            ):
                continue
            yield Hit(
                evidence=(_describe_graph(graph),),
                remedy=self.advice,
                change="`torch.no_grad()` around the evaluation" if not graph.training else "",
                site=memory_rules.memory_site(graph.line),
                bytes=graph.bytes - graph.without,
            )


def _describe_graph(graph: GraphCost) -> str:
    whose = "in evaluation" if not graph.training else "in training mode"
    return (
        f"forward passes from this line ({whose}) have a graph that no backward pass uses: they hold up to "
        f"{binary_size(graph.bytes)} at once, and {binary_size(graph.without)} under `torch.no_grad()`"
    )


LEAST = 1 << 20
"""Smaller graphs are not worth a finding, in bytes."""
