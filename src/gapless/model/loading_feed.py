"""Parts of a `Diagnosis`: what a loop iterates besides a DataLoader, and what its batches contain."""

from __future__ import annotations

import msgspec


class Around(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a loop goes through where that is not a DataLoader alone; `name` is its class.

    Each batch that the loop gets takes `batches` of the DataLoader inside, and after it `wall` nanoseconds in
    the training process, `cpu` of them computing. Without `batches` there is no DataLoader whose settings
    could be varied: then everything was measured as it is, and the time is that until the next batch comes.
    `anew` says that each pass makes its own DataLoader, so that no workers can be kept.
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

    `share` is that of all its places, in batches `size` long on average; `lengths` are those of a sample of
    items, in the order in which they came, and `batch` how many make one. `dynamic` would be the share with
    each batch padded to its own longest item, `sorted` with items of like length in a batch, both rounded up
    to multiples of 8, and `fixed` with every item padded to the next of `edges` (-1: too few lengths to
    tell). `inside` says that the items come padded, so that collating them is not what does it. `part` is the
    share of the batch's values that are padded like this field: in tensors that have its length, too.
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


class Column(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tensor of a batch: its `bytes`, and the fewest that hold the same values (`least`, as type `to`)."""

    name: str = ""
    kind: str = ""
    bytes: int = 0
    least: int = 0
    to: str = ""


class Begin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is done once at the beginning of an epoch, nanoseconds besides the first batch itself.

    `shuffle` is what the order takes before the first position is known. `opened` is what a dataset does when
    it is asked for the first time, and keeps; `again` what it does anew in each pass (a stream that opens its
    files, or fills a buffer). `forked` is what a worker's start takes until it is asked for its first batch
    where it is forked (-1: not tried, or it is).
    """

    shuffle: float = 0.0
    opened: float = 0.0
    again: float = 0.0
    forked: float = -1.0
