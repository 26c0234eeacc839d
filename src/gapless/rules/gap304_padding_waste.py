"""GAP304."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, LoaderRule
from gapless.model.loader_use import LoaderUse
from gapless.model.loading_feed import Padding
from gapless.model.wording import number, percent

_MIN_PADDING_SHARE, _MIN_SAVED_SHARE = 0.2, 0.15
"""Share of a sequence field that is padding, and share of the batch's values that could be saved, from which
it is reported: boxes beside images, however padded, are next to nothing of what the GPU computes."""


class PaddingWaste(LoaderRule):
    """Much of each batch is padding, which the GPU computes as if it were data.

    ## What waits
    Nothing waits: the GPU is busy with values that nobody needs. All sequences of a batch are as long as its
    longest one, or as a fixed maximum.

    ## Why it costs
    The time of copies, linear layers and losses grows with the number of positions, padded or not; that of
    attention grows faster. With 90 % padding, a step takes up to ten times as long as its data needs.

    ## Example
    ```python
    tokens = tokenizer(texts, padding="max_length", max_length=512)
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    ```

    ## Use instead
    ```python
    tokens = tokenizer(texts, truncation=True, max_length=512)  # as long as each text is
    sampler = gapless.loading.BucketBatchSampler(lengths, batch_size=16, pad_to=8)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=gapless.loading.pad_collate(8))
    ```
    Items of similar length are batched together, and each batch is padded to its own longest item. With
    `max_tokens=` instead of `batch_size=`, batches of short items contain more items. If shapes must be
    few (CUDA graphs, `torch.compile`), pad to a few fixed lengths. Packing several sequences into a row
    needs no padding.

    ## When it is fine
    Where the model skips padding (nested tensors, attention of variable length), or where a fixed shape
    gains more than the padding costs."""

    code = "GAP304"
    name = "padding-waste"
    advice = (
        "use batches of similar length, each padded to its own longest item: "
        "`gapless.loading.BucketBatchSampler(lengths, batch_size=..., pad_to=8)`"
    )
    change = "batch by length: `BucketBatchSampler`"

    def of_loader(self, use: LoaderUse) -> Iterator[Hit]:
        padding = use.fetch.padding if use.fetch is not None else None
        if padding is None or padding.share < _MIN_PADDING_SHARE or padding.saved < _MIN_SAVED_SHARE:
            return
        # Nothing but the GPU's own work gets less.
        saves = round(min(use.device, use.step.likely) * padding.saved)
        evidence = tuple(_evidence(padding, priced=saves > 0))
        yield Hit(evidence=evidence, remedy=_remedy(padding), saves=saves, steps=1)


def _evidence(padding: Padding, priced: bool) -> Iterator[str]:
    name = f"`{padding.field}`" if padding.field else "the batch"
    middle = sorted(padding.lengths)[len(padding.lengths) // 2]
    by = "items arrive padded" if padding.inside else "collating pads them"
    yield (
        f"{percent(padding.share)} of {name} is padding: items are {number(round(padding.mean))} long on "
        f"average (half are at most {middle}), and batches {number(round(padding.size))}; {by}"
    )
    yield (
        f"padded to the longest of each batch: {percent(padding.dynamic)}; with items of similar length in "
        f"a batch: {percent(padding.sorted)}; so {number(round(1 / max(padding.left, 1e-3), 1))} times "
        f"fewer values ({len(padding.lengths):,} items examined)"
    )
    if priced:
        yield "the saving assumes that the GPU's time in a step follows the number of values"


def _remedy(padding: Padding) -> str:
    first = "do not pad the items, and " if padding.inside else ""
    advice = (
        f"{first}`DataLoader(..., batch_sampler=gapless.loading.BucketBatchSampler(lengths, "
        f"batch_size={padding.batch}, pad_to=8), collate_fn=gapless.loading.pad_collate(8))`"
    )
    if padding.fixed >= 0 and padding.fixed < padding.share:
        edges = ", ".join(map(str, padding.edges))
        advice += f"; if shapes must be few, pad to {edges}: {percent(padding.fixed)} is then padding"
    return advice
