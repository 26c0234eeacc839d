"""GAP526."""

from __future__ import annotations

from gapless.rules._graphs import FaultRule


class InputFilledInPart(FaultRule):
    """A smaller batch is copied into a part of a graph's input; the rest still holds the previous batch.

    ## What waits
    Nothing. A graph always computes with the shapes it was captured with, all rows included.

    ## Why it costs
    The last batch of an epoch is trained on together with rows of the previous batch.

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
    `drop_last=True` in the DataLoader drops the smaller batch; a graph per size is captured once per size.

    ## When it is fine
    Where a mask or a length that is also updated excludes the old rows from all computation, or where each
    row of the result depends on one row of the input and only the new rows are read. Neither is reported.
    """

    code = "GAP526"
    name = "input-filled-in-part"
    kinds = ("part",)
    advice = (
        "also overwrite the rest (`x[rows:].zero_()`, with a loss that ignores those rows), pass "
        "`drop_last=True`, or capture one graph per size"
    )
    change = "pad the batch, or pass `drop_last=True`"
