"""GAP306: batches in wider types than their values need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.model import Hit, LoaderRule
from gapless.model.loader_use import LoaderUse
from gapless.model.loading_feed import BatchTensor
from gapless.model.wording import duration, percent, size

_MIN_SAVED_SHARE, _MIN_SAVED_BYTES = 0.25, 1_000_000
"""Share of a batch, and bytes, that must be saved."""
_MIN_SHARE_TO_NAME = 0.02
"""Share of a batch that a tensor must save to be named."""
_LINK_BYTES_PER_NS = 25.0
"""Bytes per nanosecond over 16 lanes of PCIe 4.0 at best, for the least time of a copy."""
_MIN_SHARE_OF_STEP = 0.01
"""Share of a step, if its length is known, by which the copy must get shorter."""


class WideBatch(LoaderRule):
    """Batches take more bytes than their values need: doubles, images as floats, masks as integers.

    ## What waits
    Each batch goes from a worker to the training process, into pinned memory and over the bus to the GPU.
    The step waits for it if it is not copied ahead.

    ## Why it costs
    The time of all of these grows with the number of bytes, and so does the memory of ready batches. A
    `float64` takes twice the space of a `float32`, which is what models compute with; an image as `float32`
    takes four times its original bytes; a mask as `int64` takes eight times a `bool`.

    ## Example
    ```python
    image = torch.from_numpy(pixels).float() / 255  # 4 bytes for each value of 1
    table = torch.from_numpy(numpy_table)  # float64, as NumPy makes it
    ```

    ## Use instead
    ```python
    image = torch.from_numpy(pixels)  # uint8; in the loop, on the GPU:
    image = image.to(device, non_blocking=True).float().div_(255).sub_(mean).div_(std)
    table = torch.from_numpy(numpy_table.astype("float32"))
    ```

    ## When it is fine
    Where the model computes in `float64`, or the copies overlap with computing and nothing waits for them.
    """

    code = "GAP306"
    name = "wide-batch"
    advice = (
        "use dtypes that fit the values: `float32` instead of `float64`, images as `uint8` scaled on the "
        "GPU, masks as `bool`"
    )
    change = "send narrower dtypes, and widen them on the GPU"

    def of_loader(self, use: LoaderUse) -> Iterator[Hit]:
        columns = use.fetch.columns if use.fetch is not None else ()
        whole = sum(column.bytes for column in columns)
        wide = [
            column for column in columns if column.bytes - column.least >= max(_MIN_SHARE_TO_NAME * whole, 1)
        ]
        wide.sort(key=lambda column: column.least - column.bytes)
        saved = sum(column.bytes - column.least for column in wide)
        least = max(_MIN_SAVED_BYTES, _MIN_SHARE_OF_STEP * use.step.likely * _LINK_BYTES_PER_NS)
        if saved < least or saved < _MIN_SAVED_SHARE * whole:
            return
        yield Hit(evidence=tuple(_evidence(wide, whole, saved)), remedy=_remedy(wide), bytes=whole, steps=1)


def _evidence(wide: Sequence[BatchTensor], whole: int, saved: int) -> Iterator[str]:
    yield (
        f"a batch takes {size(whole)}, but its values need only {size(whole - saved)}: "
        f"{percent(saved / whole)} less"
    )
    for column in wide[:4]:
        yield (
            f"{_column_name(column)}: {column.kind}, {size(column.bytes)} → {column.to}, "
            f"{size(column.least)}{_reason(column)}"
        )
    yield (
        f"copying the difference takes at least {duration(saved / _LINK_BYTES_PER_NS)} (PCIe 4.0, "
        "pinned memory)"
    )


def _column_name(column: BatchTensor) -> str:
    return f"`{column.name}`" if column.name else "the batch"


def _reason(column: BatchTensor) -> str:
    if column.to == "uint8":
        return " (at most 256 values in each channel, equally spaced: images that were bytes)"
    return " (only 0 and 1)" if column.to == "bool" else ""


def _remedy(wide: Sequence[BatchTensor]) -> str:
    advice = []
    for kind, sentence in (
        (
            "uint8",
            "keep {} as `uint8`, and scale and normalize on the GPU: `.to(device).float().div_(255)`",
        ),
        ("float32", "make {} `float32` in the dataset: `.astype('float32')`"),
        ("bool", "make {} `bool` in the dataset"),
        ("int32", "make {} `int32`, which embeddings also accept"),
    ):
        names = ", ".join(_column_name(column) for column in wide if column.to == kind)
        if names:
            advice.append(sentence.format(names))
    return "; ".join(advice)
