"""GAP409."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule
from gapless.model.memory_report import GraphCost, MemoryReport
from gapless.model.wording import binary_size
from gapless.rules import _memory as held


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
        grown = {line for one in memory.holders for line in one.lines}
        for one in memory.unused_graphs:
            if one.bytes - one.without < LEAST or (one.line in grown and held.leaks(memory)):
                continue
            yield Hit(
                evidence=(_of(one),),
                remedy=self.advice,
                change="`torch.no_grad()` around the evaluation" if not one.training else "",
                site=held.site(one.line),
                bytes=one.bytes - one.without,
            )


def _of(one: GraphCost) -> str:
    whose = "in evaluation" if not one.training else "in training mode"
    return (
        f"forward passes from this line ({whose}) have a graph that no backward pass uses: they hold up to "
        f"{binary_size(one.bytes)} at once, and {binary_size(one.without)} under `torch.no_grad()`"
    )


LEAST = 1 << 20
"""Bytes below which it is not worth a line."""
