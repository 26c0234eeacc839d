"""GAP526."""

from __future__ import annotations

from gapless.rules._graphs import FaultRule


class InputFilledInPart(FaultRule):
    """A smaller batch is copied into a part of a graph's input; the rest still holds the batch before.

    ## What waits
    Nothing. A graph computes on the shapes it was captured with, all rows of them.

    ## Why it costs
    The last batch of an epoch is trained on together with rows of the one before it.

    ## Example
    ```python
    x = torch.zeros(4, 8, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x.sum()
    for rows in (4, 4, 2):
        x[:rows].copy_(torch.ones(rows, 8, device="cuda"))
        g.replay()
    ```

    ## Use instead
    ```python
    x = torch.zeros(4, 8, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x.sum()
    for rows in (4, 4, 2):
        x[:rows].copy_(torch.ones(rows, 8, device="cuda"))
        x[rows:].zero_()
        g.replay()
    ```
    `drop_last=True` in the DataLoader leaves the smaller batch out; a graph for each size is captured once
    for each.

    ## When it is fine
    Where a mask or a length, written as well, leaves the old rows out of everything that is computed, or
    where each row of the result is made of one row of the input and only the new ones are read. Neither is
    reported.
    """

    code = "GAP526"
    name = "input-filled-in-part"
    kinds = ("part",)
    advice = (
        "overwrite the rest as well (`x[rows:].zero_()`, with a loss that leaves those rows out), pass "
        "`drop_last=True`, or capture one graph for each size"
    )
    change = "pad the batch, or pass `drop_last=True`"
