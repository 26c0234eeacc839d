"""Parts of a `Diagnosis`: what a loop iterates besides a DataLoader, and what its batches contain."""

from __future__ import annotations

import msgspec


class Around(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a loop iterates that is not just a DataLoader; `name` is its class.

    Each batch of the loop takes `batches` of the DataLoader inside, and then `wall` nanoseconds in the
    training process, `cpu` of them computing. Without `batches` there is no DataLoader whose settings could
    be varied: everything was measured unchanged, and the time is that until the next batch. `anew`: each pass
    creates its own DataLoader, so that workers cannot persist.
    """

    name: str
    batches: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0
    anew: bool = False

    @property
    def foreign(self) -> bool:
        """Whether there is no DataLoader inside whose settings could be varied."""
        return self.batches <= 0


class Padding(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How much of a batch's largest field is padding.

    - `share`: of all its elements, in batches `size` long on average.
    - `lengths`: of a sample of items, in the order of the sampler; `batch`: items per batch.
    - `dynamic`, `sorted`, `fixed`: what the share would be with each batch padded to its longest item, with
      items of similar length in a batch (both rounded up to multiples of 8), and with items padded to the
      next of `edges` (-1: too few lengths to tell).
    - `inside`: the items come padded; collating does not do it.
    - `part`: the share of the batch's values padded like this field: in tensors that have its length, too.
    """

    field: str = ""
    share: float = 0.0
    size: float = 0.0
    lengths: tuple[int, ...] = ()
    batch: int = 0
    dynamic: float = -1.0
    sorted: float = -1.0
    edges: tuple[int, ...] = ()
    fixed: float = -1.0
    inside: bool = False
    part: float = 1.0

    @property
    def mean(self) -> float:
        """The mean of the items' lengths."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else 0.0

    @property
    def left(self) -> float:
        """The share of the field's elements that remains when items of like length are batched together."""
        return (1.0 - self.share) / (1.0 - self.sorted) if 0 <= self.sorted < 1 else 1.0

    @property
    def saved(self) -> float:
        """The share of the whole batch's values that then goes."""
        return self.part * (1.0 - self.left)


class BatchTensor(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tensor of a batch: its `bytes`, and the fewest that hold the same values (`least`, as type `to`)."""

    name: str = ""
    kind: str = ""
    bytes: int = 0
    least: int = 0
    to: str = ""


class Begin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The work at the beginning of an epoch, in nanoseconds besides the first batch itself.

    `shuffle` is the time until the first position is known. `opened` is what a dataset does at its first use
    and keeps; `again` what it repeats in each pass (a stream that opens its files, or fills a buffer).
    `forked` is the time from a forked worker's start until its first request (-1: not tried, or workers are
    forked anyway).
    """

    shuffle: float = 0.0
    opened: float = 0.0
    again: float = 0.0
    forked: float = -1.0
