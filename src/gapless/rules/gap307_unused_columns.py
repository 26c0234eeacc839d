"""GAP307."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, LoaderRule
from gapless.model.loader_use import LoaderUse
from gapless.model.wording import percent, size

_MIN_UNUSED_SHARE, _MIN_UNUSED_BYTES = 0.1, 100_000
"""Share of a batch, and bytes, that must be unused."""


class UnusedColumns(LoaderRule):
    """Batches hold tensors that the loop never uses.

    ## What waits
    Nothing directly. Everything in an item is read or decoded, collated, sent by the worker, received,
    pinned, and often copied to the GPU with the rest.

    ## Why it costs
    Each of these takes time per byte, and memory for every ready batch. If batches are late, the time for
    producing unused data is part of the delay.

    ## Example
    ```python
    for image, depth, label in loader:
        loss = criterion(model(image.to(device)), label.to(device))
    ```

    ## Use instead
    ```python
    class Photos(Dataset):
        def __getitem__(self, at):
            return self.image(at), self.label(at)  # no depth


    for image, label in loader:
        loss = criterion(model(image.to(device)), label.to(device))
    ```
    Hugging Face datasets drop columns with `remove_columns`, or `set_format(columns=[...])`.

    ## When it is fine
    Where another loop over the same loader uses them.
    """

    code = "GAP307"
    name = "unused-columns"
    advice = "drop from the items, or in `collate_fn`, what the loop does not use"
    change = "drop the columns that the loop does not use"

    def of_loader(self, use: LoaderUse) -> Iterator[Hit]:
        columns = use.fetch.columns if use.fetch is not None else ()
        whole = sum(column.bytes for column in columns)
        unused = [column for column in columns if column.name in use.untouched]
        saved = sum(column.bytes for column in unused)
        if saved < max(_MIN_UNUSED_BYTES, _MIN_UNUSED_SHARE * whole):
            return
        named = ", ".join(f"`{column.name}` ({column.kind}, {size(column.bytes)})" for column in unused)
        where = f" at line {use.asked.line}" if use.asked is not None else ""
        less = f"{size(whole - saved)}: {percent(saved / whole)} less"
        yield Hit(
            evidence=(
                f"the loop{where} never uses {named}",
                f"a batch takes {size(whole)}, without it {less}",
            ),
            remedy=self.advice,
            bytes=whole,
            steps=1,
        )
