"""`Mistake`: a way in which a loader yields something other than its user expects."""

from __future__ import annotations

import msgspec

from gapless.model.source import SourceLine


class Mistake(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A rule (GAP31x) that applies to a loader.

    `line` is where to change something: the dataset's ``__iter__`` or ``__getitem__``, the sampler's
    ``__iter__`` or the loop; None if none of it is the user's own. `seen` is what was observed, with its
    numbers, `remedy` what to write instead, neither with a full stop. `counts` are the numbers by name.
    """

    code: str
    name: str
    seen: str
    remedy: str
    line: SourceLine | None = None
    counts: dict[str, int] = msgspec.field(default_factory=dict)

    def __str__(self) -> str:
        where = f"{self.line.where}: " if self.line is not None else ""
        return f"{where}{self.code} {self.name}: {self.seen}; {self.remedy}"


_NAMES = {
    "GAP311": "items-repeated-by-workers",
    "GAP312": "items-repeated-by-ranks",
    "GAP313": "items-lost",
    "GAP314": "same-random-numbers",
    "GAP315": "same-order-every-epoch",
    "GAP316": "set-epoch-not-called",
    "GAP317": "last-batch-surprise",
    "GAP318": "ranks-of-different-length",
}


def mistake(code: str, line: SourceLine | None, observed: str, remedy: str, **counts: int) -> Mistake:
    """Make a mistake with this `code` and the name of its rule.

    >>> mistake("GAP313", None, "2 of 10 items never come", "`drop_last=False`", lost=2).name
    'items-lost'
    """
    return Mistake(code=code, name=_NAMES[code], line=line, seen=observed, remedy=remedy, counts=counts)


class Verification(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The result of `gapless.loading.verify`.

    `items` is the number of items examined, over all `ranks`, `workers` and epochs; `complete`: an epoch was
    examined to its end. `notes` say what could not be determined.
    """

    mistakes: tuple[Mistake, ...] = ()
    ranks: int = 1
    workers: int = 0
    items: int = 0
    complete: bool = True
    notes: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the rules that apply, each once, sorted."""
        return tuple(sorted({mistake.code for mistake in self.mistakes}))

    def __str__(self) -> str:
        if self.mistakes:
            return "\n".join(str(mistake) for mistake in self.mistakes)
        return f"no mistakes in {self.items} items of {self.ranks} rank(s) and {self.workers} worker(s)"
