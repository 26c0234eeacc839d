"""GAP306."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.model import Hit, LoaderRule
from gapless.model.loader_use import LoaderUse
from gapless.model.loading_feed import Column
from gapless.model.wording import duration, percent, size

_PART, _LEAST = 0.25, 1_000_000
"""Part of a batch, and bytes, that must be saved."""
_NAMED = 0.02
"""Part of a batch below which what a tensor could save is not told."""
_LINK = 25.0
"""Bytes per nanosecond that a link of 16 lanes (PCIe 4.0) carries at best: what a copy takes at the least."""
_STEP = 0.01
"""Part of a step, where its length is known, that the copy must get shorter by."""


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
        whole = sum(one.bytes for one in columns)
        wide = [one for one in columns if one.bytes - one.least >= max(_NAMED * whole, 1)]
        wide.sort(key=lambda one: one.least - one.bytes)
        saved = sum(one.bytes - one.least for one in wide)
        least = max(_LEAST, _STEP * use.step.likely * _LINK)
        if saved < least or saved < _PART * whole:
            return
        yield Hit(evidence=tuple(_evidence(wide, whole, saved)), remedy=_remedy(wide), bytes=whole, steps=1)


def _evidence(wide: Sequence[Column], whole: int, saved: int) -> Iterator[str]:
    yield (
        f"a batch takes {size(whole)}, but its values need only {size(whole - saved)}: "
        f"{percent(saved / whole)} less"
    )
    for one in wide[:4]:
        yield f"{_name(one)}: {one.kind}, {size(one.bytes)} → {one.to}, {size(one.least)}{_why(one)}"
    yield f"copying the difference takes at least {duration(saved / _LINK)} (PCIe 4.0, pinned memory)"


def _name(one: Column) -> str:
    return f"`{one.name}`" if one.name else "the batch"


def _why(one: Column) -> str:
    if one.to == "uint8":
        return " (at most 256 values in each channel, equally spaced: images that were bytes)"
    return " (only 0 and 1)" if one.to == "bool" else ""


def _remedy(wide: Sequence[Column]) -> str:
    told = []
    for kind, what in (
        (
            "uint8",
            "keep {} as `uint8`, and scale and normalize on the GPU: `.to(device).float().div_(255)`",
        ),
        ("float32", "make {} `float32` in the dataset: `.astype('float32')`"),
        ("bool", "make {} `bool` in the dataset"),
        ("int32", "make {} `int32`, which embeddings also accept"),
    ):
        names = ", ".join(_name(one) for one in wide if one.to == kind)
        if names:
            told.append(what.format(names))
    return "; ".join(told)
